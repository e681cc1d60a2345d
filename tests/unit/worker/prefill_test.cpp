// A prefill worker's legs on the bench: landing room is granted before anything computes, rows stay
// until the transfer has ended, and every end gives everything back.
#include <doctest/doctest.h>

#include "tests/unit/worker/work_bench.h"

using namespace tandem;
using namespace tandem::worker;

namespace {

link::PrefillCommand command(const link::Leg& leg, bool transfer = true) {
  if (!transfer) return {leg, "", "", {}, ""};
  return {leg, "127.0.0.1:1", "d0", Epoch{1}, std::string(16, 't')};
}

struct Fixture {
  WorkBench bench{Role::kPrefill};
  std::shared_ptr<FakeRouter> router = std::make_shared<FakeRouter>();

  TransferId start(const link::Leg& leg, bool transfer = true) {
    bench.work->on_prefill({router, command(leg, transfer)});
    bench.settle();
    return leg.transfer;
  }
  Answer answer(TransferId transfer) const { return router->answer(transfer); }
  FakeSender::Open& open(size_t index) { return bench.sender.opens.at(index); }
};

}  // namespace

TEST_CASE("nothing is computed before the decode worker has granted room") {
  Fixture test;
  const TransferId transfer = test.start(make_leg(1, 150, 10, 2));
  REQUIRE(test.bench.sender.opens.size() == 1);
  CHECK(test.open(0).request.tokens == 150);
  CHECK_FALSE(test.answer(transfer).has_event("prefill_start"));
  CHECK(test.bench.load().prefill_backlog_tokens == 150);
  test.open(0).events.on_granted();
  test.bench.settle();
  const Answer answer = test.answer(transfer);
  REQUIRE(answer.prefill);
  CHECK(answer.prefill->first.size() == 2);
  CHECK(answer.has_event("granted"));
  REQUIRE(test.open(0).stream->sealed);
  CHECK(test.open(0).stream->sealed->tokens == 150);
  CHECK(test.open(0).stream->sealed->first.at(1).token == answer.prefill->first.at(1).token);
  // Every row of every layer, once.
  std::map<std::pair<int, KvPart>, int> rows;
  for (const auto& unit : test.open(0).stream->units) {
    CHECK(rows[{unit.layer, unit.part}] == unit.first);
    rows[{unit.layer, unit.part}] += unit.count;
  }
  CHECK(rows.size() == 8);
  for (const auto& [at, count] : rows) CHECK(count == 150);
}

TEST_CASE("rows stay until the transfer has ended, while the next prompt computes") {
  Fixture test;
  const TransferId first = test.start(make_leg(1, 150, 10));
  const TransferId second = test.start(make_leg(2, 150, 10));
  test.open(0).events.on_granted();
  test.open(1).events.on_granted();
  test.bench.settle();
  CHECK(test.answer(second).prefill);
  CHECK(test.bench.load().slots_free == 2);
  CHECK_FALSE(test.answer(first).has_event("released"));
  test.open(0).events.on_done();
  test.open(1).events.on_done();
  test.bench.settle();
  CHECK(test.answer(first).has_event("released"));
  CHECK(test.bench.is_idle());
}

TEST_CASE("a leg that waits for room holds up nobody behind it") {
  Fixture test;
  const TransferId first = test.start(make_leg(1, 150, 10));
  const TransferId second = test.start(make_leg(2, 150, 10));
  test.open(1).events.on_granted();
  test.bench.settle();
  CHECK_FALSE(test.answer(first).prefill);
  CHECK(test.answer(second).prefill);
}

TEST_CASE("a denied or broken transfer fails the leg once, and after the answer silently") {
  Fixture test;
  const TransferId denied = test.start(make_leg(1, 150, 10));
  test.open(0).events.on_failed({ErrorCode::kResourceExhausted, "no room"});
  test.bench.settle();
  REQUIRE(test.answer(denied).failures.size() == 1);
  CHECK(test.answer(denied).failures[0].code == ErrorCode::kResourceExhausted);
  CHECK(test.answer(denied).failures[0].retryable);
  CHECK(test.bench.is_idle());

  const TransferId broken = test.start(make_leg(2, 150, 10));
  test.open(1).events.on_granted();
  test.bench.settle();
  test.open(1).events.on_failed({ErrorCode::kUnavailable, "the peer is gone"});
  test.bench.settle();
  CHECK(test.answer(broken).failures.empty());
  CHECK(test.bench.is_idle());
}

TEST_CASE("a cancelled leg keeps its rows until no byte can move any more") {
  for (const bool granted : {false, true}) {
    Fixture test;
    const TransferId transfer = test.start(make_leg(1, 150, 10));
    if (granted) {
      test.open(0).events.on_granted();
      test.bench.settle();
    }
    const auto stranger = std::make_shared<FakeRouter>();
    test.bench.cancel(stranger, transfer);
    CHECK_FALSE(test.open(0).stream->aborted);
    test.bench.cancel(test.router, transfer);
    CHECK(test.open(0).stream->aborted);
    CHECK(test.bench.load().slots_free == 3);
    test.open(0).events.on_failed({ErrorCode::kCancelled, "quiesced"});
    test.bench.settle();
    CHECK(test.answer(transfer).failures.empty());
    CHECK(test.answer(transfer).has_event("released"));
    CHECK(test.bench.is_idle());
  }
}

TEST_CASE("as many transfers are open as there are slots, the others wait their turn") {
  Fixture test;
  std::vector<TransferId> legs;
  for (uint64_t i = 0; i < 6; ++i) legs.push_back(test.start(make_leg(i, 100, 10)));
  CHECK(test.bench.sender.opens.size() == 4);
  CHECK(test.bench.load().waiting == 6);
  test.bench.cancel(test.router, legs[5]);  // Waited only: gone at once.
  CHECK(test.answer(legs[5]).has_event("released"));
  test.open(2).events.on_failed({ErrorCode::kUnavailable, "gone"});
  test.bench.settle();
  REQUIRE(test.bench.sender.opens.size() == 5);
  CHECK(test.open(4).request.transfer == legs[4]);
}

TEST_CASE("a prompt for its first token alone opens no transfer") {
  Fixture test;
  const TransferId transfer = test.start(make_leg(1, 150, 1, 3), false);
  const Answer answer = test.answer(transfer);
  REQUIRE(answer.prefill);
  CHECK(answer.prefill->first.size() == 3);
  for (const auto& first : answer.prefill->first) CHECK(first.finish == FinishReason::kLength);
  CHECK(test.bench.sender.opens.empty());
  CHECK(test.bench.is_idle());
}

TEST_CASE("a deadline and a router's end take effect in every state") {
  Fixture test;
  link::Leg leg = make_leg(1, 100, 10);
  leg.deadline_ms = 1000;
  const TransferId late = test.start(leg);
  test.bench.clock.advance(std::chrono::milliseconds(1001));
  test.bench.settle();
  REQUIRE(test.answer(late).failures.size() == 1);
  CHECK(test.answer(late).failures[0].code == ErrorCode::kDeadlineExceeded);
  test.open(0).events.on_failed({ErrorCode::kCancelled, "quiesced"});
  test.bench.settle();
  CHECK(test.answer(late).failures.size() == 1);

  test.start(make_leg(2, 100, 10));
  test.start(make_leg(3, 100, 10));
  test.open(2).events.on_granted();
  test.bench.settle();
  test.bench.work->on_router_gone(test.router.get());
  test.open(1).events.on_failed({ErrorCode::kCancelled, "quiesced"});
  test.open(2).events.on_done();  // The end of the transfer and of the router crossed.
  test.bench.settle();
  CHECK(test.bench.is_idle());
}

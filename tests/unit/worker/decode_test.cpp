// A decode worker's legs on the bench: rows that another engine computed are imported and continued
// exactly, lies end the leg, and a router that does not read pauses its own answers only.
#include <doctest/doctest.h>

#include "engine/chunk_grid.h"
#include "tests/unit/worker/work_bench.h"

using namespace tandem;
using namespace tandem::worker;

namespace {

struct Fixture {
  WorkBench bench{Role::kDecode};
  std::shared_ptr<FakeRouter> router = std::make_shared<FakeRouter>();
  std::vector<std::vector<std::byte>> landing;  // Bytes of landed units

  TransferId start(const link::Leg& leg) {
    bench.work->on_decode({router, {leg, false, std::string(16, 't')}});
    return leg.transfer;
  }
  Answer answer(TransferId transfer) const { return router->answer(transfer); }
  FakeReceiver::Expected& expected(TransferId transfer) {
    return bench.receiver.expected.at(transfer);
  }
  void complete(TransferId transfer) {
    auto& progress = expected(transfer).progress;
    progress.first_us = progress.last_us = 1;
    progress.landed_all = progress.complete = true;
  }
  void land(TransferId transfer, const FakeStream::Unit& unit) {
    landing.push_back(unit.bytes);
    bench.receiver.landed.push_back(
        {transfer, unit.layer, unit.part, unit.first, unit.count, landing.back(), landing.size()});
  }
  void fail_transfer(TransferId transfer) {
    expected(transfer).events.on_failed({ErrorCode::kUnavailable, "the sender is gone"});
    bench.settle();
  }
};

// What a prefill worker would send for the leg.
struct Computed {
  FakeStream rows;
  transfer::SealInfo seal;
};
Computed compute(const link::Leg& leg) {
  struct Keep final : KvObserver {
    explicit Keep(FakeStream& to) : stream(to) {}
    void on_layer(const LayerRows& rows) override { stream.push(rows); }
    FakeStream& stream;
  };
  Computed result;
  Keep keep(result.rows);
  const auto engine = *make_engine(quick_config(), 1, 1);
  const SeqId sequence = *engine->open();
  const auto grid = chunk_grid(leg.prompt_count, 0, 64, 1);
  for (const Chunk& chunk : grid) {
    const auto tokens =
        std::span(leg.tokens)
            .subspan(static_cast<size_t>(chunk.first), static_cast<size_t>(chunk.count));
    CHECK(engine->prefill(sequence, tokens, chunk.first, true, &keep).ok());
  }
  result.seal.tokens = leg.prompt_count;
  for (const uint64_t seed : leg.seeds) {
    SamplingParams params = leg.sampling;
    params.seed = seed;
    const auto sampler = *engine->make_sampler(params, leg.tokens, leg.prompt_count);
    result.seal.first.push_back(*engine->sample(sequence, *sampler));
  }
  return result;
}

std::vector<TokenId> local(const link::Leg& leg, int choice) {
  Fixture test;
  test.bench.work->on_decode({test.router, {leg, true, ""}});
  test.bench.settle();
  return test.answer(leg.transfer).output(choice);
}

void hand_over(Fixture& test, const link::Leg& leg, const Computed& computed) {
  test.expected(leg.transfer).events.on_granted();
  test.bench.settle();
  for (const auto& unit : computed.rows.units) {
    test.land(leg.transfer, unit);
    test.bench.settle();
  }
  test.expected(leg.transfer).events.on_sealed(computed.seal);
  test.complete(leg.transfer);
  test.bench.settle();
}

}  // namespace

TEST_CASE("rows computed elsewhere are continued token for token, in every choice") {
  for (const int prompt : {1, 64, 130, 500}) {
    const link::Leg leg = make_leg(4, prompt, 25, 2);
    const Computed computed = compute(leg);
    Fixture test;
    test.start(leg);
    hand_over(test, leg, computed);
    const Answer answer = test.answer(leg.transfer);
    CHECK(answer.failures.empty());
    for (int choice = 0; choice < 2; ++choice) {
      std::vector<TokenId> whole = {computed.seal.first[static_cast<size_t>(choice)].token};
      for (const auto& sampled : answer.tokens.at(choice)) whole.push_back(sampled.token);
      CHECK(whole.size() == 25);
      CHECK(whole == local(leg, choice));
    }
    CHECK(test.bench.receiver.consumed_tickets.size() == computed.rows.units.size());
    CHECK(test.expected(leg.transfer).finished == Status());
    for (const char* event :
         {"accepted", "granted", "kv_first", "kv_last", "landed", "joined", "released"}) {
      CHECK(answer.has_event(event));
    }
    CHECK(test.bench.is_idle());
  }
}

TEST_CASE("rows may land before the grant's event, and the seal before the last row") {
  const link::Leg leg = make_leg(4, 130, 10);
  const Computed computed = compute(leg);
  Fixture test;
  test.start(leg);
  test.expected(leg.transfer).events.on_sealed(computed.seal);
  for (const auto& unit : computed.rows.units) test.land(leg.transfer, unit);
  test.bench.settle();
  CHECK_FALSE(test.answer(leg.transfer).has_event("joined"));
  test.complete(leg.transfer);
  test.bench.settle();
  CHECK(test.answer(leg.transfer).tokens.at(0).size() == 9);
  CHECK(test.bench.is_idle());
}

TEST_CASE("slots are promised with the command and come back however the leg ends") {
  Fixture test;
  const link::Leg leg = make_leg(4, 130, 100, 8);
  test.start(leg);
  CHECK(test.bench.load().slots_free == 0);
  CHECK(test.bench.load().kv_tokens_reserved == 8 * 230);
  const TransferId refused = test.start(make_leg(5, 10, 10));
  REQUIRE(test.answer(refused).failures.size() == 1);
  CHECK(test.answer(refused).failures[0].code == ErrorCode::kResourceExhausted);
  CHECK(test.bench.receiver.expected.size() == 1);
  test.fail_transfer(leg.transfer);
  CHECK(test.answer(leg.transfer).failures.at(0).retryable);
  CHECK(test.expected(leg.transfer).finished);
  CHECK(test.bench.is_idle());
}

TEST_CASE("cancelling in every phase finishes the transfer and frees everything") {
  const link::Leg leg = make_leg(4, 130, 100, 2);
  const Computed computed = compute(leg);
  for (int phase = 0; phase < 4; ++phase) {
    CAPTURE(phase);
    Fixture test;
    test.start(leg);
    if (phase >= 1) test.expected(leg.transfer).events.on_granted();
    test.bench.settle();
    if (phase >= 2) test.land(leg.transfer, computed.rows.units[0]);
    if (phase >= 3) {
      test.bench.settle();
      test.expected(leg.transfer).events.on_sealed(computed.seal);
    }
    test.bench.cancel(test.router, leg.transfer);
    test.bench.settle();
    REQUIRE(test.expected(leg.transfer).finished);
    CHECK(test.expected(leg.transfer).finished->code() == ErrorCode::kCancelled);
    CHECK(test.answer(leg.transfer).has_event("released"));
    CHECK(test.answer(leg.transfer).failures.empty());
    CHECK(test.bench.is_idle());
  }
}

TEST_CASE("an answer that ends with its first token frees everything without a step") {
  const link::Leg leg = make_leg(4, 130, 100, 2);
  Computed computed = compute(leg);
  for (auto& first : computed.seal.first) first.finish = FinishReason::kEndOfText;
  Fixture test;
  test.start(leg);
  hand_over(test, leg, computed);
  CHECK(test.answer(leg.transfer).tokens.empty());
  CHECK(test.expected(leg.transfer).finished == Status());
  CHECK(test.bench.is_idle());
}

TEST_CASE("a seal or rows that do not fit end the leg as lost data") {
  const link::Leg leg = make_leg(4, 130, 100, 2);
  const Computed computed = compute(leg);
  const auto refused = [&](const std::function<void(Computed&)>& lie) {
    Computed changed = computed;
    lie(changed);
    Fixture test;
    test.start(leg);
    hand_over(test, leg, changed);
    const Answer answer = test.answer(leg.transfer);
    REQUIRE(answer.failures.size() == 1);
    CHECK(answer.failures[0].code == ErrorCode::kDataLoss);
    CHECK(answer.failures[0].retryable);
    CHECK_FALSE(test.expected(leg.transfer).finished->ok());
    CHECK(test.bench.is_idle());
  };
  refused([](Computed& lie) { lie.seal.tokens = 129; });
  refused([](Computed& lie) { lie.seal.first.pop_back(); });
  refused([](Computed& lie) { lie.seal.first[0].token = 100000; });
  refused([](Computed& lie) { lie.rows.units[3].layer = 4; });
  refused([](Computed& lie) { lie.rows.units[3].first = 100; });
  refused([](Computed& lie) { lie.rows.units[3].bytes.pop_back(); });
}

TEST_CASE("rows for nobody are given back") {
  Fixture test;
  const link::Leg leg = make_leg(4, 64, 10);
  const Computed computed = compute(leg);
  test.land(leg.transfer, computed.rows.units[0]);
  test.bench.settle();
  CHECK(test.bench.receiver.consumed_tickets.size() == 1);
}

TEST_CASE("a router that does not read pauses its own answers, and loses them if it stays so") {
  Fixture test;
  const auto slow = std::make_shared<FakeRouter>();
  const link::Leg waiting = make_leg(1, 64, 1000);
  const link::Leg going = make_leg(2, 64, 100);
  test.bench.work->on_decode({slow, {waiting, true, ""}});
  for (int i = 0; i < 20; ++i) test.bench.work->advance();
  slow->queued = test.bench.config.link.send_queue_bytes;
  const size_t before = slow->answer(waiting.transfer).output().size();
  CHECK(before > 1);
  test.bench.work->on_decode({test.router, {going, true, ""}});
  test.bench.settle();
  CHECK(test.answer(going.transfer).output().size() == 100);
  CHECK(slow->answer(waiting.transfer).output().size() == before);
  CHECK(test.bench.work->next_wakeup() < test.bench.clock.now() + std::chrono::seconds(1));
  slow->queued = 0;
  for (int i = 0; i < 5; ++i) test.bench.work->advance();
  CHECK(slow->answer(waiting.transfer).output().size() == before + 5);
  slow->queued = test.bench.config.link.send_queue_bytes;
  test.bench.settle();
  test.bench.clock.advance(std::chrono::seconds(11));
  test.bench.settle();
  REQUIRE(slow->answer(waiting.transfer).failures.size() == 1);
  CHECK(slow->answer(waiting.transfer).failures[0].code == ErrorCode::kResourceExhausted);
  CHECK(test.bench.is_idle());
}

// Transfers that go wrong: whatever fails, in whatever state, both ends hear of it once, no wrong
// row is delivered, nothing is left behind, and the next transfer works.
#include <doctest/doctest.h>

#include "tests/contract/transfer/stream_fixture.h"
#include "tests/contract/transfer/transport_suite.h"

namespace tandem::transfer {
namespace {

KvLayout small_layout() {
  KvLayout layout;
  layout.element_type = "f16";
  layout.layers.assign(4, {2048, 2048, 0});
  return layout;
}

bool idle(Pair& pair) {
  return pair.until([&] {
    return pair.prefill->sender().streams_open() == 0 &&
           pair.decode->receiver().streams_open() == 0 &&
           pair.decode->receiver().landing_bytes_used() == 0;
  });
}

struct Started {
  std::shared_ptr<Outcome> in;
  std::shared_ptr<Outcome> out;
  std::shared_ptr<OutgoingStream> stream;
};

Started start(Pair& pair, TransferId id, int tokens) {
  Started started;
  const OpenRequest open = pair.request(id, tokens);
  started.in = pair.decode->expect(id, open.token, tokens);
  started.stream = pair.prefill->open(open, started.out);
  return started;
}

void send_all(Pair& pair, Started& started, FakeCache& source) {
  pair.push_chunk(*started.stream, source, 0, source.tokens);
  started.stream->seal(test_seal(source.tokens));
}

}  // namespace

TEST_CASE("a corrupt unit fails the transfer and is never delivered") {
  const KvLayout layout = small_layout();
  for (const std::string name :
       {"seed=1,corrupt=0.2+local", "seed=2,corrupt=0.2+tcp", "seed=3,corrupt=0.2+ucx"}) {
    CAPTURE(name);
    Pair pair(name, layout, test_config());
    if (!pair.usable()) continue;
    const int tokens = 400;
    FakeCache source(layout, tokens, true);
    Started started = start(pair, {1}, tokens);
    send_all(pair, started, source);
    REQUIRE(pair.until([&] { return started.in->failure() && started.out->failure(); }));
    CHECK(started.in->failure()->code() == ErrorCode::kDataLoss);
    CHECK(started.out->failure()->code() == ErrorCode::kDataLoss);
    // Every row that was delivered is right.
    FakeCache& cache = pair.decode->cache({1});
    const std::vector<std::byte> empty(2048);
    for (const auto& [where, bytes] : cache.data) {
      for (size_t row = 0; row < size_t(tokens); ++row) {
        const auto mine = std::span(bytes).subspan(row * 2048, 2048);
        const auto sent = std::span(source.data[where]).subspan(row * 2048, 2048);
        CHECK((std::equal(mine.begin(), mine.end(), sent.begin()) ||
               std::equal(mine.begin(), mine.end(), empty.begin())));
      }
    }
    CHECK(idle(pair));
  }
}

TEST_CASE("rows that never arrive end in data loss, not in a wait without end") {
  const KvLayout layout = small_layout();
  Config config = test_config();
  config.transfer.progress_deadline = Milliseconds(500);
  for (const std::string name :
       {"seed=1,drop=0.3+tcp", "seed=1,drop_message=0.3+tcp", "seed=4,drop=0.3+ucx"}) {
    CAPTURE(name);
    Pair pair(name, layout, config);
    if (!pair.usable()) continue;
    FakeCache source(layout, 60, true);
    Started started = start(pair, {1}, 60);
    send_all(pair, started, source);
    REQUIRE(pair.until([&] { return started.in->failure() && started.out->failure(); }));
    const ErrorCode code = started.in->failure()->code();
    CHECK((code == ErrorCode::kDataLoss || code == ErrorCode::kDeadlineExceeded));
    CHECK(idle(pair));
  }
}

TEST_CASE("a channel that breaks in mid-transfer fails it, and the next transfer makes a new one") {
  const KvLayout layout = small_layout();
  for (const std::string name : {"kill_at=7+local", "kill_at=7+tcp", "kill_at=7+ucx"}) {
    CAPTURE(name);
    Pair pair(name, layout, test_config());
    if (!pair.usable()) continue;
    FakeCache source(layout, 400, true);
    Started started = start(pair, {1}, 400);
    send_all(pair, started, source);
    REQUIRE(pair.until([&] { return started.in->failure() && started.out->failure(); }));
    CHECK(idle(pair));
    CHECK(pair.transfer(300));
    CHECK(started.in->terminal_events == 1);
    CHECK(started.out->terminal_events == 1);
  }
}

TEST_CASE("an abort ends a transfer in each state, from either side") {
  const KvLayout layout = small_layout();
  enum Step { kOpened, kGranted, kStreaming, kStalled, kSealed, kSteps };
  for (const std::string& name : test_transport_names()) {
    Pair pair(name, layout, test_config());
    if (!pair.usable()) continue;
    uint64_t id = 1;
    for (int step = kOpened; step < kSteps; ++step) {
      for (const bool by_sender : {true, false}) {
        CAPTURE(name);
        CAPTURE(step);
        CAPTURE(by_sender);
        const int tokens = 400;
        FakeCache source(layout, tokens, true);
        Started started = start(pair, {++id}, tokens);
        if (step >= kGranted) REQUIRE(pair.until([&] { return started.out->is_granted(); }));
        if (step >= kStreaming) pair.push_chunk(*started.stream, source, 0, 5);
        if (step >= kStalled) {
          pair.decode->hold_units = true;
          const uint64_t stalls = pair.prefill->sender().totals().credit_stalls;
          pair.push_chunk(*started.stream, source, 5, tokens - 5);
          REQUIRE(
              pair.until([&] { return pair.prefill->sender().totals().credit_stalls > stalls; }));
        }
        if (step >= kSealed) {
          started.stream->seal(test_seal(tokens));
          REQUIRE(pair.until([&] { return started.in->is_sealed(); }));
        }
        if (by_sender) {
          started.stream->abort(Status(ErrorCode::kCancelled, "test"));
          started.stream->abort(Status(ErrorCode::kInternal, "again"));
          REQUIRE(pair.until([&] { return started.out->failure().has_value(); }));
          if (step == kOpened) {
            // OPEN may not have left yet; then only the router can tell the receiver.
            pair.decode->receiver().finish({id}, Status(ErrorCode::kCancelled, "test"));
          } else {
            REQUIRE(pair.until([&] { return started.in->failure().has_value(); }));
            CHECK(started.in->failure()->code() == ErrorCode::kCancelled);
          }
        } else {
          pair.decode->receiver().finish({id}, Status(ErrorCode::kCancelled, "test"));
          REQUIRE(pair.until([&] { return started.out->failure().has_value(); }));
          CHECK(started.in->terminal_events == 0);  // Who ends it is not told
        }
        CHECK(started.out->terminal_events == 1);
        pair.decode->release_held();
        REQUIRE(idle(pair));
      }
    }
    CHECK(pair.transfer(300));
    CHECK(pair.decode->receiver().totals().segments_retired == 0);
  }
}

TEST_CASE(
    "a lost session fails the transfers on it; what was kept aside comes back with the next") {
  const KvLayout layout = small_layout();
  for (const std::string& name : test_transport_names()) {
    CAPTURE(name);
    Pair pair(name, layout, test_config());
    if (!pair.usable()) continue;
    FakeCache source(layout, 400, true);
    Started started = start(pair, {1}, 400);
    REQUIRE(pair.until([&] { return started.out->is_granted(); }));
    pair.decode->hold_units = true;
    pair.push_chunk(*started.stream, source, 0, 400);
    REQUIRE(pair.until([&] { return pair.decode->receiver().progress_of({1}).bytes > 0; }));
    pair.decode->close_sessions();
    REQUIRE(pair.until([&] { return started.in->failure() && started.out->failure(); }));
    pair.decode->release_held();
    REQUIRE(idle(pair));
    const bool one_sided = name == "local" || name == "ucx";
    CHECK(pair.decode->receiver().totals().segments_retired == (one_sided ? 1 : 0));
    for (int round = 0; round < 6; ++round) REQUIRE(pair.transfer(200));
    CHECK(idle(pair));
  }
}

TEST_CASE("a transfer that takes longer than its deadline ends on both sides") {
  const KvLayout layout = small_layout();
  Pair pair("tcp", layout, test_config());
  OpenRequest open = pair.request({1}, 100);
  open.deadline = std::chrono::milliseconds(300);
  const auto in = pair.decode->expect({1}, open.token, 100, std::chrono::milliseconds(300));
  std::shared_ptr<Outcome> out;
  const auto stream = pair.prefill->open(open, out);
  REQUIRE(pair.until([&] { return in->failure() && out->failure(); }));
  CHECK(idle(pair));
}

TEST_CASE("a decode worker that is not there, or is another process, fails the stream") {
  const KvLayout layout = small_layout();
  Pair pair("tcp", layout, test_config());
  std::shared_ptr<Outcome> out;
  OpenRequest open = pair.request({1}, 100);
  open.decode_listen = "127.0.0.1:1";
  const auto nowhere = pair.prefill->open(open, out);
  REQUIRE(pair.until([&] { return out->failure().has_value(); }));
  CHECK(out->failure()->code() == ErrorCode::kUnavailable);
  open = pair.request({2}, 100);
  open.decode_epoch.value += 1;
  const auto restarted = pair.prefill->open(open, out);
  REQUIRE(pair.until([&] { return out->failure().has_value(); }));
  CHECK(out->failure()->code() == ErrorCode::kUnavailable);
  CHECK(pair.transfer(100));
}

TEST_CASE("a wrong token is refused and does not harm the right one") {
  const KvLayout layout = small_layout();
  Pair pair("tcp", layout, test_config());
  const auto in = pair.decode->expect({1}, "the right token!", 50);
  std::shared_ptr<Outcome> wrong;
  const auto intruder = pair.prefill->open(pair.request({1}, 50), wrong);
  REQUIRE(pair.until([&] { return wrong->failure().has_value(); }));
  CHECK(wrong->failure()->code() == ErrorCode::kUnauthenticated);
  CHECK(!in->failure());
  OpenRequest open = pair.request({1}, 50);
  open.token = "the right token!";
  std::shared_ptr<Outcome> right;
  const auto stream = pair.prefill->open(open, right);
  CHECK(pair.until([&] { return right->is_granted(); }));
  // One-time: the same token opens nothing again.
  PrefillSide other(pair.config, layout, make_test_transport("tcp"));
  std::shared_ptr<Outcome> again;
  const auto second = other.open(open, again);
  CHECK(pair.until([&] { return again->failure().has_value(); }));
  CHECK(!right->failure());
}

TEST_CASE("another layout or another number of tokens is refused with the reason") {
  const KvLayout layout = small_layout();
  Pair pair("tcp", layout, test_config());
  KvLayout other = layout;
  other.layers[1].window = 5;
  PrefillSide foreign(pair.config, other, make_test_transport("tcp"));
  OpenRequest open = pair.request({1}, 50);
  auto in = pair.decode->expect({1}, open.token, 50);
  std::shared_ptr<Outcome> out;
  const auto stream = foreign.open(open, out);
  REQUIRE(pair.until([&] { return out->failure() && in->failure(); }));
  CHECK(out->failure()->code() == ErrorCode::kFailedPrecondition);

  open = pair.request({2}, 51);
  in = pair.decode->expect({2}, open.token, 50);
  const auto second = pair.prefill->open(open, out);
  REQUIRE(pair.until([&] { return out->failure() && in->failure(); }));
  CHECK(out->failure()->code() == ErrorCode::kInvalidArgument);
}

TEST_CASE("stopping either side ends its transfers and tells the other") {
  const KvLayout layout = small_layout();
  for (const std::string& name : test_transport_names()) {
    for (const bool sender_stops : {true, false}) {
      CAPTURE(name);
      CAPTURE(sender_stops);
      Pair pair(name, layout, test_config());
      if (!pair.usable()) continue;
      FakeCache source(layout, 400, true);
      Started started = start(pair, {1}, 400);
      REQUIRE(pair.until([&] { return started.out->is_granted(); }));
      pair.push_chunk(*started.stream, source, 0, 400);
      if (sender_stops) {
        pair.prefill->sender().stop();
        CHECK(started.out->terminal_events == 1);
      } else {
        pair.decode->receiver().stop();
        CHECK(started.in->terminal_events == 1);
      }
      REQUIRE(pair.until([&] { return started.in->failure() && started.out->failure(); }));
    }
  }
}

}  // namespace tandem::transfer

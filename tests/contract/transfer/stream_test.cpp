// Whole transfers over every transport: what was sent is what the receiver holds, within bounded
// memory, whatever the shapes, the chunks and the number of transfers at once.
#include <doctest/doctest.h>

#include "tests/contract/transfer/stream_fixture.h"
#include "tests/contract/transfer/transport_suite.h"

namespace tandem::transfer {
namespace {

KvLayout plain_layout(int layers, uint32_t row_bytes, int32_t window = 0) {
  KvLayout layout;
  layout.element_type = "f16";
  layout.layers.assign(size_t(layers), {row_bytes, row_bytes, window});
  return layout;
}

void each(const KvLayout& layout, const Config& config, const std::function<void(Pair&)>& check) {
  for (const std::string& name : test_transport_names()) {
    CAPTURE(name);
    Pair pair(name, layout, config);
    if (pair.usable()) check(pair);
  }
}

// Nothing is left of a transfer on either side.
bool idle(Pair& pair) {
  return pair.until([&] {
    return pair.prefill->sender().streams_open() == 0 &&
           pair.decode->receiver().streams_open() == 0 &&
           pair.decode->receiver().landing_bytes_used() == 0;
  });
}

}  // namespace

TEST_CASE("whole transfers of random shapes arrive byte for byte") {
  for (int round = 0; round < 4; ++round) {
    const KvLayout layout = random_layout();
    each(layout, test_config(), [](Pair& pair) {
      for (int transfer = 0; transfer < 3; ++transfer) {
        REQUIRE(pair.transfer(1 + int(randomness()() % 900)));
      }
      CHECK(idle(pair));
      const TransferTotals in = pair.decode->receiver().totals();
      const TransferTotals out = pair.prefill->sender().totals();
      CHECK(in.transfers_done == 3);
      CHECK(out.transfers_done == 3);
      CHECK(in.bytes == out.bytes);
      CHECK(in.failures + out.failures + in.segments_retired == 0);
    });
  }
}

TEST_CASE("without checksums transfers are whole too") {
  const KvLayout layout = plain_layout(3, 700);
  Config config = test_config();
  config.transfer.integrity = false;
  each(layout, config, [](Pair& pair) { CHECK(pair.transfer(500)); });
}

TEST_CASE("landing memory is bounded whatever the prompt's length") {
  const KvLayout layout = plain_layout(8, 1024);
  each(layout, test_config(), [](Pair& pair) {
    REQUIRE(pair.transfer(2500));  // 40 MB through a segment of 256 KB
    CHECK(pair.decode->landing_peak <= pair.config.transfer.segment_bytes);
    CHECK(idle(pair));
  });
}

TEST_CASE("out of room the sender neither blocks nor fails, and goes on when room comes back") {
  const KvLayout layout = plain_layout(4, 2048);
  each(layout, test_config(), [](Pair& pair) {
    const int tokens = 400;  // 6.5 MB
    FakeCache source(pair.layout, tokens, true);
    const OpenRequest open = pair.request({1}, tokens);
    const auto in = pair.decode->expect({1}, open.token, tokens);
    std::shared_ptr<Outcome> out;
    const auto stream = pair.prefill->open(open, out);
    pair.decode->hold_units = true;
    pair.push_chunk(*stream, source, 0, tokens);
    stream->seal(test_seal(tokens));
    REQUIRE(pair.until([&] {
      return pair.prefill->sender().totals().credit_stalls > 0 &&
             pair.decode->receiver().progress_of({1}).bytes > 0;
    }));
    CHECK(stream->bytes_sent() <= uint64_t(pair.config.transfer.segment_bytes));
    CHECK(pair.until([&] { return in->is_sealed(); }));  // First tokens do not wait for rows
    CHECK(!out->is_done());
    pair.decode->release_held();
    REQUIRE(pair.until([&] { return out->is_done(); }));
    CHECK(pair.decode->cache({1}).holds(source));
  });
}

TEST_CASE("a windowed layer's older rows are neither sent nor missed") {
  KvLayout layout = plain_layout(4, 512, 100);
  layout.layers[2].window = 0;
  each(layout, test_config(), [](Pair& pair) {
    REQUIRE(pair.transfer(1000));
    CHECK(pair.prefill->sender().totals().bytes == (1000 + 3 * 100) * 1024);
    REQUIRE(pair.transfer(50));
  });
}

TEST_CASE("more transfers than segments wait their turn and all arrive") {
  const KvLayout layout = plain_layout(2, 600);
  each(layout, test_config(), [](Pair& pair) {
    constexpr int kTransfers = 20;  // For four segments
    const int tokens = 300;
    FakeCache source(pair.layout, tokens, true);
    std::vector<std::shared_ptr<Outcome>> ins;
    std::vector<std::shared_ptr<Outcome>> outs(kTransfers);
    std::vector<std::shared_ptr<OutgoingStream>> streams;
    for (int index = 0; index < kTransfers; ++index) {
      const OpenRequest open = pair.request({uint64_t(index + 1)}, tokens);
      ins.push_back(pair.decode->expect(open.transfer, open.token, tokens));
      streams.push_back(pair.prefill->open(open, outs[size_t(index)]));
    }
    for (const auto& stream : streams) {
      pair.push_chunk(*stream, source, 0, 200);
      pair.push_chunk(*stream, source, 200, 100);
      stream->seal(test_seal(tokens));
    }
    REQUIRE(pair.until([&] {
      return std::all_of(outs.begin(), outs.end(), [](const auto& out) { return out->is_done(); });
    }));
    for (int index = 0; index < kTransfers; ++index) {
      CHECK(pair.decode->cache({uint64_t(index + 1)}).holds(source));
    }
    CHECK(pair.decode->landing_peak <= pair.config.transfer.landing_bytes);
    CHECK(idle(pair));
  });
}

TEST_CASE("landing space is granted first come first served, and refused after the deadline") {
  const KvLayout layout = plain_layout(1, 100);
  Config config = test_config();
  config.transfer.landing_bytes = config.transfer.segment_bytes;  // One at a time
  config.transfer.grant_deadline = Milliseconds(400);
  Pair pair("tcp", layout, config);
  std::vector<std::shared_ptr<Outcome>> ins;
  std::vector<std::shared_ptr<Outcome>> outs(3);
  std::vector<std::shared_ptr<OutgoingStream>> streams;
  for (uint64_t id = 1; id <= 3; ++id) {
    const OpenRequest open = pair.request({id}, 10);
    ins.push_back(pair.decode->expect({id}, open.token, 10));
    streams.push_back(pair.prefill->open(open, outs[id - 1]));
    if (id == 1) REQUIRE(pair.until([&] { return outs[0]->is_granted(); }));
  }
  REQUIRE(pair.until([&] { return outs[1]->failure() && outs[2]->failure(); }));
  CHECK(outs[1]->failure()->code() == ErrorCode::kResourceExhausted);
  CHECK(ins[2]->failure()->code() == ErrorCode::kResourceExhausted);
  // The second place goes to who asked second.
  const OpenRequest open = pair.request({4}, 10);
  ins.push_back(pair.decode->expect({4}, open.token, 10));
  std::shared_ptr<Outcome> fourth;
  streams.push_back(pair.prefill->open(open, fourth));
  streams[0]->abort(Status(ErrorCode::kCancelled, "enough"));
  CHECK(pair.until([&] { return fourth->is_granted(); }));
}

TEST_CASE("an OPEN that comes before the router's announcement waits for it, not for ever") {
  const KvLayout layout = plain_layout(1, 100);
  Config config = test_config();
  config.transfer.grant_deadline = Milliseconds(500);
  Pair pair("tcp", layout, config);
  std::shared_ptr<Outcome> early;
  const auto first = pair.prefill->open(pair.request({1}, 10), early);
  REQUIRE(pair.until([&] { return pair.decode->receiver().streams_open() == 1; }));
  pair.decode->expect({1}, pair.request({1}, 10).token, 10);
  CHECK(pair.until([&] { return early->is_granted(); }));
  std::shared_ptr<Outcome> orphan;
  const auto second = pair.prefill->open(pair.request({2}, 10), orphan);
  REQUIRE(pair.until([&] { return orphan->failure().has_value(); }));
  CHECK(orphan->failure()->code() == ErrorCode::kNotFound);
}

TEST_CASE("while the engine computes, a stream without rows stays alive") {
  const KvLayout layout = plain_layout(2, 100);
  Config config = test_config();
  config.transfer.progress_deadline = Milliseconds(1000);
  each(layout, config, [](Pair& pair) {
    const OpenRequest open = pair.request({1}, 20);
    const auto in = pair.decode->expect({1}, open.token, 20);
    std::shared_ptr<Outcome> out;
    const auto stream = pair.prefill->open(open, out);
    FakeCache source(pair.layout, 20, true);
    pair.push_chunk(*stream, source, 0, 10);
    const TimePoint later = SystemClock::get().now() + std::chrono::milliseconds(2500);
    REQUIRE(pair.until([&] { return SystemClock::get().now() > later; }));
    CHECK(!out->failure());
    CHECK(!in->failure());
    pair.push_chunk(*stream, source, 10, 10);
    stream->seal(test_seal(20));
    CHECK(pair.until([&] { return out->is_done(); }));
  });
}

}  // namespace tandem::transfer

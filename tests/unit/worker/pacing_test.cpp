// How a partitioned worker divides its machine, and when prompt chunks wait for answers: time is
// stepped, nothing computes.
#include <doctest/doctest.h>

#include "tests/unit/worker/test_router.h"
#include "worker/chunk_pacer.h"
#include "worker/processors.h"

using namespace tandem;
using namespace tandem::worker;

namespace {

constexpr auto kMs = std::chrono::milliseconds(1);
constexpr Chunk kChunk{0, 64};  // 1 + 64 * 0.02 = 2.28 ms with quick_config()
const TimePoint kNow{std::chrono::hours(1)};

}  // namespace

TEST_CASE("threads and processors are divided by the shares, and each half gets one") {
  const std::vector<int> four = {0, 1, 2, 5};
  const Partition even = divide(4, four, {50, 50});
  CHECK(even.prefill_threads == 2);
  CHECK(even.decode_threads == 2);
  CHECK(even.prefill_processors == std::vector<int>{0, 1});
  CHECK(even.decode_processors == std::vector<int>{2, 5});
  const Partition steep = divide(4, four, {99, 1});
  CHECK(steep.prefill_threads == 3);
  CHECK(steep.decode_threads == 1);
  CHECK(steep.decode_processors == std::vector<int>{5});
  const Partition flat = divide(4, four, {1, 99});
  CHECK(flat.prefill_threads == 1);
  CHECK(flat.prefill_processors == std::vector<int>{0});
}

TEST_CASE("one thread or one processor is shared") {
  const Partition one = divide(1, {3}, {50, 50});
  CHECK(one.prefill_threads == 1);
  CHECK(one.decode_threads == 1);
  CHECK(one.prefill_processors == std::vector<int>{3});
  CHECK(one.decode_processors == std::vector<int>{3});
  CHECK(divide(2, {}, {50, 50}).prefill_processors.empty());
}

TEST_CASE("a chunk starts at once when nobody decodes or there is time for it") {
  const Config config = quick_config();
  ChunkPacer pacer(config);
  pacer.begin(false);
  CHECK(pacer.start_of(kChunk, kNow) == kNow);
  pacer.stepped({0.0}, 10, 1);  // 9 ms for chunk and step
  CHECK(pacer.start_of(kChunk, kNow) == kNow);
  pacer.stepped({}, 0, 0);
  CHECK(pacer.start_of({0, 64000}, kNow) == kNow);
}

TEST_CASE("a chunk waits while it would make answers late, and not for ever") {
  Config config = quick_config();
  config.worker.chunk_wait = Milliseconds(50);
  ChunkPacer pacer(config);
  pacer.begin(false);
  pacer.stepped({0.0}, 3, 1);  // 2.7 ms: too little for both
  CHECK(pacer.start_of(kChunk, kNow) > kNow);
  CHECK(pacer.start_of(kChunk, kNow + 49 * kMs) > kNow + 49 * kMs);
  CHECK(pacer.start_of(kChunk, kNow + 49 * kMs) <= kNow + 50 * kMs);
  CHECK(pacer.start_of(kChunk, kNow + 50 * kMs) == kNow + 50 * kMs);
  pacer.computed(kChunk, 2 * kMs);
  CHECK(pacer.start_of(kChunk, kNow + 52 * kMs) > kNow + 52 * kMs);  // Its wait begins anew
  pacer.stepped({5.0}, 3, 1);                                        // Saved meanwhile
  CHECK(pacer.start_of(kChunk, kNow + 53 * kMs) == kNow + 53 * kMs);
}

TEST_CASE("beside a thread of their own, answers hold a chunk only while they are behind") {
  Config config = quick_config();
  config.share = {.prefill = 1, .decode = 3};
  ChunkPacer pacer(config);
  pacer.begin(true);
  pacer.stepped({0.0}, 3, 1);
  CHECK(pacer.start_of(kChunk, kNow) == kNow);
  pacer.stepped({-5.0}, 3, 2.8);  // A step took longer than it may
  CHECK(pacer.start_of(kChunk, kNow) > kNow);
  CHECK(pacer.start_of(kChunk, kNow + 6 * kMs) > kNow + 6 * kMs);
  CHECK(pacer.start_of(kChunk, kNow + 7 * kMs) == kNow + 7 * kMs);  // Three chunks' time
  pacer.begin(false);
  CHECK(pacer.start_of(kChunk, kNow) == kNow);
}

TEST_CASE("a chunk does not wait where waiting does not help") {
  const Config config = quick_config();
  ChunkPacer pacer(config);
  for (const bool apart : {false, true}) {
    pacer.begin(apart);
    pacer.stepped({-9.0}, 3, 4);
    CHECK(pacer.start_of(kChunk, kNow) > kNow);
    pacer.stepped({-9.0}, 3, 4);  // The chunk before may have been beside this one
    CHECK(pacer.start_of(kChunk, kNow) > kNow);
    pacer.stepped({-9.0}, 3, 4);  // But not beside this one
    CHECK(pacer.start_of(kChunk, kNow) == kNow);
    pacer.computed(kChunk, 2 * kMs);
    pacer.stepped({-9.0}, 3, 4);
    CHECK(pacer.start_of(kChunk, kNow) == kNow);
    pacer.stepped({-9.0}, 3, 2.6);  // Fast again, but still behind: it may catch up
    CHECK(pacer.start_of(kChunk, kNow) == (apart ? kNow : kNow + 5 * kMs));
  }
}

// RingAllocator against a model that knows every byte in use: allocations never overlap, and room
// that is given back in order always becomes usable again.
#include "transfer/stream/ring_allocator.h"

#include <doctest/doctest.h>

#include <deque>
#include <random>
#include <vector>

#include "common/random.h"

namespace tandem::transfer {

TEST_CASE("allocations never overlap and never leave the segment, whatever the sizes") {
  const uint64_t seed = seed_from_environment();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (int run = 0; run < 200; ++run) {
    const size_t size = 1 + random() % 5000;
    RingAllocator ring(size);
    std::vector<bool> used(size, false);
    std::deque<std::pair<size_t, size_t>> living;
    uint64_t released = 0;
    for (int step = 0; step < 500; ++step) {
      const size_t bytes = 1 + random() % size;
      const uint64_t number = ring.next();
      if (const auto offset = ring.allocate(bytes)) {
        REQUIRE(*offset + bytes <= size);
        REQUIRE(number == released + living.size());
        bool overlaps = false;
        for (size_t i = *offset; i < *offset + bytes; ++i) {
          overlaps |= used[i];
          used[i] = true;
        }
        REQUIRE(!overlaps);
        living.emplace_back(*offset, bytes);
      } else {
        REQUIRE(!living.empty());  // An empty ring has room for anything up to its size
      }
      for (uint64_t count = random() % (living.size() + 1); count > 0; --count) {
        for (size_t i = 0; i < living.front().second; ++i) used[living.front().first + i] = false;
        living.pop_front();
        ++released;
      }
      REQUIRE(ring.release_below(released));
      REQUIRE(ring.idle() == living.empty());
    }
  }
}

TEST_CASE("more than the segment is never allocated") {
  RingAllocator ring(100);
  CHECK(!ring.allocate(101));
  CHECK(ring.allocate(100) == 0);
  CHECK(!ring.allocate(1));
}

TEST_CASE("credit for allocations that were never made is refused") {
  RingAllocator ring(100);
  REQUIRE(ring.allocate(10));
  CHECK(!ring.release_below(2));
  CHECK(ring.release_below(1));
  CHECK(ring.release_below(0));  // An old credit changes nothing
}

}  // namespace tandem::transfer

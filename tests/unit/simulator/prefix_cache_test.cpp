// What a worker's prefix cache finds, keeps and drops.
#include "simulator/prefix_cache.h"

#include <doctest/doctest.h>

using namespace tandem;
using namespace tandem::simulator;

namespace {

using Blocks = std::vector<uint64_t>;

}  // namespace

TEST_CASE("a prompt finds the blocks that it shares from its beginning") {
  PrefixCache cache;
  std::vector<scheduler::CacheEvent> events;
  cache.store(Blocks{1, 2, 3}, 10, events);
  CHECK(events.size() == 3);
  CHECK(cache.match(Blocks{1, 2, 9}) == 2);
  CHECK(cache.match(Blocks{2, 3}) == 2);  // Hashes are chained: whoever asks so has that prefix
  CHECK(cache.match(Blocks{9, 2, 3}) == 0);
  CHECK(cache.match(Blocks{}) == 0);
}

TEST_CASE(
    "beyond its size the least recently used blocks go, a prompt's end before its beginning") {
  PrefixCache cache;
  std::vector<scheduler::CacheEvent> events;
  cache.store(Blocks{1, 2, 3}, 4, events);
  cache.store(Blocks{4, 5}, 4, events);
  CHECK(cache.size() == 4);
  CHECK(cache.match(Blocks{1, 2, 3}) == 2);
  CHECK(events.back().hash == 3);
  CHECK_FALSE(events.back().stored);
  cache.store(Blocks{1, 2}, 4, events);  // Used again: now 4 and 5 are older
  cache.store(Blocks{6}, 4, events);
  CHECK(cache.match(Blocks{1, 2}) == 2);
  CHECK(cache.match(Blocks{4, 5}) == 1);
  cache.trim(0, events);
  CHECK(cache.size() == 0);
}

#include "simulator/prefix_cache.h"

#include <algorithm>

namespace tandem::simulator {

int PrefixCache::match(std::span<const uint64_t> blocks) const {
  int count = 0;
  for (const uint64_t block : blocks) {
    if (!where_.contains(block)) break;
    ++count;
  }
  return count;
}

void PrefixCache::store(std::span<const uint64_t> blocks, int64_t blocks_max,
                        std::vector<scheduler::CacheEvent>& events) {
  for (size_t i = blocks.size(); i-- > 0;) {
    if (const auto found = where_.find(blocks[i]); found != where_.end()) {
      order_.splice(order_.begin(), order_, found->second);
      continue;
    }
    order_.push_front(blocks[i]);
    where_.emplace(blocks[i], order_.begin());
    events.push_back({blocks[i], true});
  }
  trim(blocks_max, events);
}

void PrefixCache::trim(int64_t blocks_max, std::vector<scheduler::CacheEvent>& events) {
  while (size() > std::max<int64_t>(0, blocks_max)) {
    events.push_back({order_.back(), false});
    where_.erase(order_.back());
    order_.pop_back();
  }
}

}  // namespace tandem::simulator

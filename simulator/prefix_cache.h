// The prompt blocks whose KV a simulated worker keeps: least recently used first out, in blocks.
// Owned by the worker; one thread.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "scheduler/scheduler.h"

namespace tandem::simulator {

class PrefixCache {
 public:
  // How many of the first blocks are here.
  int match(std::span<const uint64_t> blocks) const;
  // Keeps them, then drops the oldest beyond `blocks_max`. A prompt's end is older than its
  // beginning. What changes is added to `events`.
  void store(std::span<const uint64_t> blocks, int64_t blocks_max,
             std::vector<scheduler::CacheEvent>& events);
  void trim(int64_t blocks_max, std::vector<scheduler::CacheEvent>& events);
  int64_t size() const { return static_cast<int64_t>(where_.size()); }

 private:
  std::list<uint64_t> order_;  // The latest first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> where_;
};

}  // namespace tandem::simulator

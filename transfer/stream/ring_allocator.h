// RingAllocator: the sender's view of a segment. Allocations are contiguous, numbered from 0, and
// come back in order, as the receiver says how many it has consumed. A pure value; one thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace tandem::transfer {

class RingAllocator {
 public:
  explicit RingAllocator(size_t bytes) : bytes_(bytes) {}

  // The offset of `bytes` contiguous bytes; nothing when there is no room now. Requires: bytes > 0.
  std::optional<size_t> allocate(size_t bytes);
  // Allocations below number `sequence` may be reused. False when that many were never made.
  bool release_below(uint64_t sequence);
  // The number of the next allocation.
  uint64_t next() const { return first_ + ends_.size(); }
  bool idle() const { return ends_.empty(); }

 private:
  static constexpr size_t kAlignment = 64;

  size_t bytes_;
  uint64_t head_ = 0;  // Positions count on over laps; modulo bytes_ they are offsets
  uint64_t tail_ = 0;
  uint64_t first_ = 0;         // The number of the oldest allocation
  std::deque<uint64_t> ends_;  // Where each living allocation ends
};

}  // namespace tandem::transfer

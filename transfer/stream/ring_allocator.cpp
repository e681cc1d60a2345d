#include "transfer/stream/ring_allocator.h"

namespace tandem::transfer {

std::optional<size_t> RingAllocator::allocate(size_t bytes) {
  if (bytes > bytes_) return std::nullopt;
  if (ends_.empty()) head_ = tail_ = 0;
  const uint64_t offset = head_ % bytes_;
  // What does not fit before the end of the segment starts at its beginning.
  const uint64_t begin = offset + bytes > bytes_ ? head_ + (bytes_ - offset) : head_;
  if (begin + bytes - tail_ > bytes_) return std::nullopt;
  const uint64_t room = bytes_ - (begin + bytes) % bytes_;
  const uint64_t padding = (kAlignment - bytes % kAlignment) % kAlignment;
  head_ = begin + bytes + (room < bytes_ ? std::min(padding, room) : 0);
  ends_.push_back(head_);
  return begin % bytes_;
}

bool RingAllocator::release_below(uint64_t sequence) {
  if (sequence > next()) return false;
  while (first_ < sequence) {
    tail_ = ends_.front();
    ends_.pop_front();
    ++first_;
  }
  return true;
}

}  // namespace tandem::transfer

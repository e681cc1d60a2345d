// GrantQueue: transfers that wait for landing space, first come first served, each until its
// deadline. A pure value; one thread at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "common/types.h"

namespace tandem::transfer {

class GrantQueue {
 public:
  explicit GrantQueue(size_t length_max) : length_max_(length_max) {}

  // False when the queue is full.
  bool push(TransferId transfer, TimePoint deadline) {
    if (waiting_.size() >= length_max_) return false;
    waiting_.push_back({transfer, deadline});
    return true;
  }
  std::optional<TransferId> front() const {
    return waiting_.empty() ? std::nullopt : std::optional(waiting_.front().transfer);
  }
  void remove(TransferId transfer) {
    std::erase_if(waiting_, [&](const Entry& entry) { return entry.transfer == transfer; });
  }
  // Takes out those whose deadline has passed.
  std::vector<TransferId> expire(TimePoint now) {
    std::vector<TransferId> late;
    std::erase_if(waiting_, [&](const Entry& entry) {
      if (entry.deadline <= now) late.push_back(entry.transfer);
      return entry.deadline <= now;
    });
    return late;
  }
  size_t size() const { return waiting_.size(); }

 private:
  struct Entry {
    TransferId transfer;
    TimePoint deadline;
  };
  const size_t length_max_;
  std::deque<Entry> waiting_;
};

}  // namespace tandem::transfer

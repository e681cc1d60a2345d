// BoundedQueue: messages between threads, at most `capacity` of them. Any number of producers and
// consumers.
//
// When full, try_push() refuses and the caller decides. After close() nothing can be pushed; what
// is inside can still be popped, then pop() returns empty at once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "common/clock.h"

namespace tandem {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // False, and `item` is untouched, when the queue is full or closed.
  bool try_push(T&& item) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return true;
  }
  bool try_push(const T& item) { return try_push(T(item)); }

  std::optional<T> try_pop() {
    const std::lock_guard lock(mutex_);
    return take();
  }

  // Waits until there is an item, the queue is closed and empty, or `deadline` (steady clock) has
  // passed.
  std::optional<T> pop(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    not_empty_.wait_until(lock, deadline, [this] { return closed_ || !items_.empty(); });
    return take();
  }

  // Wakes everybody who waits. Idempotent.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
  }

  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  // Requires: mutex_ is held.
  std::optional<T> take() {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::deque<T> items_;  // Guarded by mutex_
  bool closed_ = false;  // Guarded by mutex_
};

}  // namespace tandem

// DeliveryQueue: callbacks that became due while their owner's lock was held, run afterwards in
// order.
//
// A transport collects here what happened (a message, an ended notification), a stream's end the
// frames that it sends; deliver() is called once the lock is free. Any thread; one thread at a time
// runs callbacks, another's deliver() leaves its own to that thread, so order is kept and a
// callback may call back into the owner.
#pragma once

#include <deque>
#include <functional>
#include <mutex>

namespace tandem::transfer {

class DeliveryQueue {
 public:
  void add(std::function<void()> callback) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(callback));
  }

  // True when something ran.
  bool deliver() {
    std::unique_lock lock(mutex_);
    if (delivering_ || waiting_.empty()) return false;
    delivering_ = true;
    while (!waiting_.empty()) {
      const std::function<void()> callback = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      callback();
      lock.lock();
    }
    delivering_ = false;
    return true;
  }

  bool empty() const {
    const std::lock_guard lock(mutex_);
    return waiting_.empty();
  }

 private:
  mutable std::mutex mutex_;
  std::deque<std::function<void()>> waiting_;  // Guarded by mutex_
  bool delivering_ = false;                    // Guarded by mutex_
};

}  // namespace tandem::transfer

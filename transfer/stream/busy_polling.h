// BusyPolling: whether some thread polls a transport so often that nobody else should sleep on its
// events. An armed event descriptor costs the peer a system call and this process a wake-up per
// message. Any thread.
#pragma once

#include <atomic>

#include "common/clock.h"

namespace tandem::transfer {

class BusyPolling {
 public:
  // For who would sleep: look again after this long instead.
  static constexpr int kLookAgainMs = 1;

  void note() { last_.store(ticks(), std::memory_order_relaxed); }
  bool now() const { return ticks() - last_.load(std::memory_order_relaxed) < kRecent.count(); }

 private:
  static constexpr Duration kRecent = std::chrono::microseconds(200);
  static int64_t ticks() { return SystemClock::get().now().time_since_epoch().count(); }

  std::atomic<int64_t> last_ = -kRecent.count();
};

}  // namespace tandem::transfer

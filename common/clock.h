// Time as a dependency: code that measures or waits takes a Clock, so that tests step it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tandem {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic; for deadlines and durations.
  virtual TimePoint now() const = 0;
  // Microseconds since the Unix epoch; for timelines that cross processes. May step.
  virtual int64_t wall_us() const = 0;
};

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  int64_t wall_us() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  // The process-wide instance.
  static const SystemClock& get();
};

// Stands still until told to move. For tests and the simulator.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(now_ns_.load())); }
  int64_t wall_us() const override { return now_ns_.load() / 1000; }
  void advance(Duration by) { now_ns_.fetch_add(by.count()); }

 private:
  std::atomic<int64_t> now_ns_{0};
};

inline double to_ms(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}
inline double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace tandem

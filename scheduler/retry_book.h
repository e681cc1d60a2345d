// What a refused client is told to wait, and the place that is then kept for it. Each refusal books
// the work of its request on a calendar of capacity; requests that were not told to come now find
// the booked places taken, as far as clients have come back lately: places for those that never do
// would lie idle. A returning client is known by its request's fingerprint.
//
// Bounded: at most kBookingsMax places, none further away than kWaitMax. Pure; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "common/clock.h"

namespace tandem::scheduler {

class RetryBook {
 public:
  static constexpr double kWaitMin = 1;  // Seconds: HTTP's Retry-After is whole
  static constexpr double kWaitMax = 60;
  static constexpr size_t kBookingsMax = 100'000;

  // Seconds to wait for a place that is free `free_in_s` from now at the soonest and takes
  // `work_s` of the whole fleet.
  double book(uint64_t fingerprint, double free_in_s, double work_s, TimePoint now);
  // Does this request have a place now? It is then used up.
  bool claim(uint64_t fingerprint, TimePoint now);
  // Booked fleet time, and places, that fall due until then and are expected to be claimed.
  double work_until(TimePoint until) const;
  int places_until(TimePoint until) const;
  int size() const { return static_cast<int>(by_due_.size()); }

 private:
  struct Booking {
    uint64_t fingerprint = 0;
    double work_s = 0;
    TimePoint expires{};
  };
  using ByDue = std::multimap<TimePoint, Booking>;

  void expire(TimePoint now);
  void erase(ByDue::iterator it);

  ByDue by_due_;
  std::unordered_multimap<uint64_t, ByDue::iterator> by_fingerprint_;
  TimePoint free_from_{};  // The calendar is full until then
  double shows_ = 0.5;     // Part of the bookings that is claimed, of late
};

}  // namespace tandem::scheduler

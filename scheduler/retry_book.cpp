#include "scheduler/retry_book.h"

#include <algorithm>
#include <cmath>

namespace tandem::scheduler {
namespace {

using namespace std::chrono_literals;

// A client may come this much early (clocks, rounding), and this late, or by half its wait.
constexpr Duration kEarly = 500ms;
constexpr Duration kLate = 3s;
// How much one claimed or forgotten booking says about the next.
constexpr double kShowsWeight = 0.1;

Duration seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

}  // namespace

double RetryBook::book(uint64_t fingerprint, double free_in_s, double work_s, TimePoint now) {
  expire(now);
  free_in_s = std::isfinite(free_in_s) ? std::clamp(free_in_s, 0.0, kWaitMax) : kWaitMax;
  work_s = std::isfinite(work_s) ? std::clamp(work_s, 0.0, kWaitMax) : kWaitMax;
  // A clock that jumped leaves a calendar that makes no sense: begin it anew.
  if (free_from_ > now + seconds(2 * kWaitMax)) free_from_ = now;
  const TimePoint from = std::max(free_from_, now + seconds(free_in_s));
  const double wait = std::max(kWaitMin, to_seconds(from - now));
  if (wait > kWaitMax || by_due_.size() >= kBookingsMax) return kWaitMax;
  free_from_ = from + seconds(shows_ * work_s);
  const TimePoint due = now + seconds(wait);
  const auto it = by_due_.emplace(
      due, Booking{fingerprint, work_s, due + std::max<Duration>(kLate, seconds(wait / 2))});
  by_fingerprint_.emplace(fingerprint, it);
  return wait;
}

bool RetryBook::claim(uint64_t fingerprint, TimePoint now) {
  expire(now);
  const auto [begin, end] = by_fingerprint_.equal_range(fingerprint);
  for (auto it = begin; it != end; ++it) {
    if (it->second->first > now + kEarly) continue;
    by_due_.erase(it->second);
    by_fingerprint_.erase(it);
    shows_ += kShowsWeight * (1 - shows_);
    return true;
  }
  return false;
}

double RetryBook::work_until(TimePoint until) const {
  double sum = 0;
  for (auto it = by_due_.begin(); it != by_due_.end() && it->first <= until; ++it)
    sum += it->second.work_s;
  return shows_ * sum;
}

int RetryBook::places_until(TimePoint until) const {
  int count = 0;
  for (auto it = by_due_.begin(); it != by_due_.end() && it->first <= until; ++it) ++count;
  return static_cast<int>(std::ceil(shows_ * count));
}

void RetryBook::expire(TimePoint now) {
  // In order of due time, which is nearly that of expiry.
  while (!by_due_.empty() && by_due_.begin()->second.expires < now) {
    shows_ -= kShowsWeight * shows_;
    erase(by_due_.begin());
  }
}

void RetryBook::erase(ByDue::iterator it) {
  const auto [begin, end] = by_fingerprint_.equal_range(it->second.fingerprint);
  for (auto entry = begin; entry != end; ++entry) {
    if (entry->second != it) continue;
    by_fingerprint_.erase(entry);
    break;
  }
  by_due_.erase(it);
}

}  // namespace tandem::scheduler

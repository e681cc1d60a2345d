#include "bench/statistics.h"

#include <algorithm>
#include <cmath>

namespace tandem::bench {

Samples::Samples(std::vector<double> values) : sorted_(std::move(values)) {
  if (sorted_.empty()) return;
  std::sort(sorted_.begin(), sorted_.end());
  const double count = static_cast<double>(sorted_.size());
  double sum = 0.0;
  for (double value : sorted_) sum += value;
  mean_ = sum / count;
  double squares = 0.0;
  for (double value : sorted_) squares += (value - mean_) * (value - mean_);
  stddev_ = std::sqrt(squares / count);
}

double Samples::percentile(double percent) const {
  if (sorted_.empty()) return 0.0;
  const double position = percent / 100.0 * static_cast<double>(sorted_.size() - 1);
  const size_t below = std::min(static_cast<size_t>(position), sorted_.size() - 1);
  const size_t above = std::min(below + 1, sorted_.size() - 1);
  const double fraction = position - static_cast<double>(below);
  const double step = sorted_[above] - sorted_[below];
  // Interpolating from the nearer end is what numpy does; the last bit of the result depends on it.
  return fraction >= 0.5 ? sorted_[above] - step * (1.0 - fraction)
                         : sorted_[below] + step * fraction;
}

}  // namespace tandem::bench

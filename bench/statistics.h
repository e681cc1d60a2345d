// Statistics over samples, equal to numpy's: percentiles by linear interpolation, population
// deviation. Values are immutable after construction and free to share between threads.
#pragma once

#include <cstddef>
#include <vector>

namespace tandem::bench {

class Samples {
 public:
  Samples() = default;
  explicit Samples(std::vector<double> values);  // Sorts them.

  // All are 0 for an empty set, as `vllm bench serve` reports it.
  double mean() const { return mean_; }
  double median() const { return percentile(50.0); }
  double stddev() const { return stddev_; }
  double min() const { return sorted_.empty() ? 0.0 : sorted_.front(); }
  double max() const { return sorted_.empty() ? 0.0 : sorted_.back(); }
  // Requires: 0 <= percent <= 100.
  double percentile(double percent) const;

  bool empty() const { return sorted_.empty(); }
  size_t size() const { return sorted_.size(); }
  const std::vector<double>& sorted() const { return sorted_; }

 private:
  std::vector<double> sorted_;
  double mean_ = 0.0;
  double stddev_ = 0.0;
};

}  // namespace tandem::bench

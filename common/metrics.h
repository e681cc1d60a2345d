// Metrics: counters, gauges and histograms of this process, and series that other processes pushed
// to it.
//
// Counting is meant for hot paths: each thread adds to cells of its own, without locks or shared
// cache lines; reading adds the threads up. Handles are small values that stay valid for the life
// of the process, and may be used from any thread. Asking again for a name with the same labels
// gives the same series. Asking for a metric takes a lock: do it once, at start. A
// default-constructed handle counts into the void.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::metrics {

using Label = std::pair<std::string, std::string>;
using Labels = std::vector<Label>;

class Counter {
 public:
  void add(double amount = 1) const;
  double value() const;

 private:
  friend Counter counter(std::string_view, std::string_view, const Labels&);
  uint32_t cell_ = 0;
};

// One cell for all threads: for values that are set, not for hot counting.
class Gauge {
 public:
  void set(double value) const { value_->store(value, std::memory_order_relaxed); }
  void add(double amount) const { value_->fetch_add(amount, std::memory_order_relaxed); }
  double value() const { return value_->load(std::memory_order_relaxed); }

 private:
  friend Gauge gauge(std::string_view, std::string_view, const Labels&);
  static std::atomic<double> nowhere;
  std::atomic<double>* value_ = &nowhere;
};

class Histogram {
 public:
  void observe(double value) const;
  uint64_t count() const;
  double sum() const;

 private:
  friend Histogram histogram(std::string_view, std::string_view, std::span<const double>,
                             const Labels&);
  std::span<const double> bounds_;
  uint32_t cell_ = 0;  // bounds_.size() + 1 buckets, then the sum
};

// Bounds in seconds for waits and latencies, 1 ms to 60 s, and for transfers, 100 us to 10 s.
extern const std::span<const double> kLatencyBounds;
extern const std::span<const double> kTransferBounds;

// `name` without _bucket, _sum and the like. Requires: a name has one type, and one set of bounds.
Counter counter(std::string_view name, std::string_view help, const Labels& labels = {});
Gauge gauge(std::string_view name, std::string_view help, const Labels& labels = {});
// `bounds`: ascending upper limits; the last bucket, +Inf, is implied.
Histogram histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                    const Labels& labels = {});

// `name{a="b"}`, as in the text format: the key of pushed series.
std::string series_name(std::string_view name, const Labels& labels);

// This process's series that carry `only`, by full name without that label: what a worker pushes.
std::map<std::string, double> values_with(const Label& only);
// Exports pushed series, each with the label `source` added, in place of what `source` had before.
// Names that do not parse are left out.
void export_pushed(const Label& source, const std::map<std::string, double>& series);
void forget_pushed(const Label& source);

// Everything above in Prometheus text format 0.0.4.
std::string render();
inline constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace tandem::metrics

namespace tandem {
inline std::string render_metrics() { return metrics::render(); }
}  // namespace tandem

#include "common/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <sstream>

#include "common/metric_cells.h"
#include "common/pushed_series.h"
#include "common/status.h"

namespace tandem::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr double kLatency[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                               0.5,   1,      2.5,   5,    10,    30,   60};
constexpr double kTransfer[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                0.05,   0.1,     0.25,   0.5,   1,      2.5,   10};

struct Series {
  Labels labels;
  uint32_t cell = 0;  // Counter, histogram
  std::atomic<double>* gauge = nullptr;
};

struct Family {
  MetricType type{};
  std::string help;
  std::vector<double> bounds;
  std::deque<Series> series;
};

ClientMetric sample_of(const Family& family, const Series& series) {
  const Cells& cells = Cells::get();
  ClientMetric metric;
  for (const auto& [name, value] : series.labels) metric.label.push_back({name, value});
  if (family.type == MetricType::Counter) {
    metric.counter.value = cells.total(series.cell);
  } else if (family.type == MetricType::Gauge) {
    metric.gauge.value = series.gauge->load(std::memory_order_relaxed);
  } else {
    const auto buckets = static_cast<uint32_t>(family.bounds.size() + 1);
    uint64_t cumulative = 0;
    for (uint32_t i = 0; i < buckets; ++i) {
      cumulative += static_cast<uint64_t>(cells.total(series.cell + i));
      const double bound =
          i + 1 < buckets ? family.bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({cumulative, bound});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = cells.total(series.cell + buckets);
  }
  return metric;
}

// All families of this process, and what others pushed. Never destroyed, like the cells.
class Registry final : public prometheus::Collectable {
 public:
  static Registry& get() {
    static auto* registry = new Registry;
    return *registry;
  }

  // The series, made on first use.
  std::pair<const Family*, Series> find(MetricType type, std::string_view name,
                                        std::string_view help, std::span<const double> bounds,
                                        Labels labels) {
    std::sort(labels.begin(), labels.end());
    const std::lock_guard lock(mutex_);
    auto [at, fresh] = families_.try_emplace(std::string(name));
    Family& family = at->second;
    if (fresh) {
      family = {type, std::string(help), {bounds.begin(), bounds.end()}, {}};
    }
    TANDEM_CHECK(family.type == type && std::ranges::equal(family.bounds, bounds),
                 "two kinds of metric share the name " + std::string(name));
    for (const Series& series : family.series) {
      if (series.labels == labels) return {&family, series};
    }
    Series& series = family.series.emplace_back();
    series.labels = std::move(labels);
    if (type == MetricType::Gauge) {
      series.gauge = &gauges_.emplace_back(0.0);
    } else {
      const size_t cells = type == MetricType::Counter ? 1 : bounds.size() + 2;
      series.cell = Cells::get().allocate(static_cast<uint32_t>(cells));
    }
    return {&family, series};
  }

  std::vector<MetricFamily> Collect() const override {
    const std::lock_guard lock(mutex_);
    std::map<std::string, MetricFamily> out;
    for (const auto& [name, family] : families_) {
      MetricFamily& collected = out[name];
      collected.name = name;
      collected.help = family.help;
      collected.type = family.type;
      for (const Series& series : family.series) {
        collected.metric.push_back(sample_of(family, series));
      }
    }
    for (const auto& [source, series] : pushed_) merge_pushed(out, source, series);
    std::vector<MetricFamily> families;
    families.reserve(out.size());
    for (auto& [name, family] : out) families.push_back(std::move(family));
    return families;
  }

  std::map<std::string, double> values_with(const Label& only) const {
    const std::lock_guard lock(mutex_);
    std::map<std::string, double> out;
    for (const auto& [name, family] : families_) {
      for (const Series& series : family.series) {
        const auto at = std::ranges::find(series.labels, only);
        if (at == series.labels.end()) continue;
        Series stripped = series;
        stripped.labels.erase(stripped.labels.begin() + (at - series.labels.begin()));
        flatten(out, name, family.type, stripped.labels, sample_of(family, stripped));
      }
    }
    return out;
  }

  void push(const Label& source, PushedSeries series) {
    const std::lock_guard lock(mutex_);
    pushed_[source] = std::move(series);
  }
  void forget(const Label& source) {
    const std::lock_guard lock(mutex_);
    pushed_.erase(source);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Family> families_;  // Guarded by mutex_
  std::deque<std::atomic<double>> gauges_;  // Guarded by mutex_; elements never move
  std::map<Label, PushedSeries> pushed_;    // Guarded by mutex_
};

}  // namespace

std::atomic<double> Gauge::nowhere{0};
const std::span<const double> kLatencyBounds = kLatency;
const std::span<const double> kTransferBounds = kTransfer;

void Counter::add(double amount) const { Cells::add(cell_, amount); }
double Counter::value() const { return cell_ == 0 ? 0 : Cells::get().total(cell_); }

void Histogram::observe(double value) const {
  if (cell_ == 0) return;
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  Cells::add(cell_ + static_cast<uint32_t>(bucket), 1);
  Cells::add(cell_ + static_cast<uint32_t>(bounds_.size()) + 1, value);
}
uint64_t Histogram::count() const {
  double count = 0;
  for (uint32_t i = 0; cell_ != 0 && i <= bounds_.size(); ++i) {
    count += Cells::get().total(cell_ + i);
  }
  return static_cast<uint64_t>(count);
}
double Histogram::sum() const {
  return cell_ == 0 ? 0 : Cells::get().total(cell_ + static_cast<uint32_t>(bounds_.size()) + 1);
}

Counter counter(std::string_view name, std::string_view help, const Labels& labels) {
  Counter made;
  made.cell_ = Registry::get().find(MetricType::Counter, name, help, {}, labels).second.cell;
  return made;
}

Gauge gauge(std::string_view name, std::string_view help, const Labels& labels) {
  Gauge made;
  made.value_ = Registry::get().find(MetricType::Gauge, name, help, {}, labels).second.gauge;
  return made;
}

Histogram histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                    const Labels& labels) {
  TANDEM_CHECK(!bounds.empty() && std::ranges::is_sorted(bounds), "bounds ascend");
  const auto [family, series] =
      Registry::get().find(MetricType::Histogram, name, help, bounds, labels);
  Histogram made;
  made.bounds_ = family->bounds;  // Families are never removed
  made.cell_ = series.cell;
  return made;
}

std::map<std::string, double> values_with(const Label& only) {
  return Registry::get().values_with(only);
}

void export_pushed(const Label& source, const std::map<std::string, double>& series) {
  Registry::get().push(source, parse_pushed(series));
}
void forget_pushed(const Label& source) { Registry::get().forget(source); }

std::string render() {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, Registry::get().Collect());
  return std::move(out).str();
}

}  // namespace tandem::metrics

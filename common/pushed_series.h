// Series as text: how a worker's metrics travel on a link, and how the router puts them back into
// families. Only metrics.cpp uses this. Pure functions.
#pragma once

#include <prometheus/metric_family.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/metrics.h"

namespace tandem::metrics {

struct PushedValue {
  std::string name;
  Labels labels;
  double value = 0;
};
using PushedSeries = std::vector<PushedValue>;

// Adds `metric` to `out` under its full names: one for a counter or gauge; for a histogram its
// buckets, sum and count.
void flatten(std::map<std::string, double>& out, const std::string& name,
             prometheus::MetricType type, const Labels& labels,
             const prometheus::ClientMetric& metric);

// What parses of `series`. A full name is at most 1,024 bytes.
PushedSeries parse_pushed(const std::map<std::string, double>& series);

// Adds pushed series, with the label `source`, to the families of the same name. The type is that
// of the family that is there; else *_total is a counter, *_bucket with its sum and count a
// histogram, and anything else a gauge.
void merge_pushed(std::map<std::string, prometheus::MetricFamily>& families, const Label& source,
                  const PushedSeries& series);

}  // namespace tandem::metrics

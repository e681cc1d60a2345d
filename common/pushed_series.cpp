#include "common/pushed_series.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "common/units.h"

namespace tandem::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr size_t kFullNameMax = 1024;

bool is_name(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == ':';
  };
  return !text.empty() && !(text[0] >= '0' && text[0] <= '9') && std::ranges::all_of(text, allowed);
}

// Reads `a="b",c="d"`, with \\, \" and \n escaped in values. False when it does not parse.
bool parse_labels(std::string_view text, Labels& labels) {
  while (!text.empty()) {
    const size_t equals = text.find("=\"");
    if (equals == std::string_view::npos || !is_name(text.substr(0, equals))) return false;
    Label& label = labels.emplace_back(text.substr(0, equals), "");
    text.remove_prefix(equals + 2);
    size_t at = 0;
    for (; at < text.size() && text[at] != '"'; ++at) {
      const bool escape = text[at] == '\\';
      if (escape && ++at == text.size()) return false;
      label.second += escape && text[at] == 'n' ? '\n' : text[at];
    }
    if (at == text.size()) return false;
    text.remove_prefix(at + 1);
    if (!text.empty() && (text[0] != ',' || text.size() == 1)) return false;
    if (!text.empty()) text.remove_prefix(1);
  }
  return true;
}

std::optional<PushedValue> parse_one(std::string_view full_name, double value) {
  if (full_name.size() > kFullNameMax) return std::nullopt;
  PushedValue parsed{.value = value};
  const size_t brace = full_name.find('{');
  parsed.name = full_name.substr(0, brace);
  if (!is_name(parsed.name)) return std::nullopt;
  if (brace != std::string_view::npos) {
    if (full_name.back() != '}') return std::nullopt;
    const auto inner = full_name.substr(brace + 1, full_name.size() - brace - 2);
    if (!parse_labels(inner, parsed.labels)) return std::nullopt;
  }
  std::sort(parsed.labels.begin(), parsed.labels.end());
  return parsed;
}

bool strip(std::string_view name, std::string_view suffix, std::string& base) {
  if (!name.ends_with(suffix)) return false;
  base = name.substr(0, name.size() - suffix.size());
  return true;
}

double parse_bound(const std::string& text) {
  return parse_number(text).value_or(std::numeric_limits<double>::infinity());
}

// Histograms under assembly: by family name and labels without `le`.
using Histograms = std::map<std::pair<std::string, Labels>, ClientMetric::Histogram>;

// Takes the buckets out of `series`; what is left may be their sums and counts.
Histograms take_buckets(const PushedSeries& series) {
  Histograms histograms;
  for (const PushedValue& value : series) {
    std::string base;
    if (!strip(value.name, "_bucket", base)) continue;
    Labels labels = value.labels;
    const auto le = std::ranges::find(labels, "le", &Label::first);
    if (le == labels.end()) continue;
    const double bound = parse_bound(le->second);
    labels.erase(le);
    histograms[{base, labels}].bucket.push_back(
        {static_cast<uint64_t>(std::max(0.0, value.value)), bound});
  }
  for (auto& [key, histogram] : histograms) {
    std::ranges::sort(histogram.bucket, {}, &ClientMetric::Bucket::upper_bound);
  }
  return histograms;
}

// True when `value` belongs to one of `histograms`, and is taken in.
bool belongs(Histograms& histograms, const PushedValue& value) {
  std::string base;
  if (value.name.ends_with("_bucket")) {
    return std::ranges::find(value.labels, "le", &Label::first) != value.labels.end();
  }
  const bool is_sum = strip(value.name, "_sum", base);
  if (!is_sum && !strip(value.name, "_count", base)) return false;
  const auto at = histograms.find({base, value.labels});
  if (at == histograms.end()) return false;
  if (is_sum) {
    at->second.sample_sum = value.value;
  } else {
    at->second.sample_count = static_cast<uint64_t>(std::max(0.0, value.value));
  }
  return true;
}

// The family to add to; null when one of another type has the name.
MetricFamily* family_of(std::map<std::string, MetricFamily>& families, const std::string& name,
                        MetricType type, bool any_type) {
  auto [at, fresh] = families.try_emplace(name);
  MetricFamily& family = at->second;
  if (fresh) {
    family.name = name;
    family.help = "Pushed by workers.";
    family.type = type;
  }
  const bool scalar = family.type == MetricType::Counter || family.type == MetricType::Gauge;
  return family.type == type || (any_type && scalar) ? &family : nullptr;
}

ClientMetric labelled(const Label& source, const Labels& labels) {
  ClientMetric metric;
  for (const auto& [name, value] : labels) {
    if (name != source.first) metric.label.push_back({name, value});
  }
  metric.label.push_back({source.first, source.second});
  return metric;
}

}  // namespace

std::string series_name(std::string_view name, const Labels& labels) {
  std::string out(name);
  char separator = '{';
  for (const auto& [label, value] : labels) {
    out += separator;
    out += label;
    out += "=\"";
    for (const char c : value) {
      if (c == '\\' || c == '"') out += '\\';
      out += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
    out += '"';
    separator = ',';
  }
  if (separator == ',') out += '}';
  return out;
}

void flatten(std::map<std::string, double>& out, const std::string& name, MetricType type,
             const Labels& labels, const ClientMetric& metric) {
  if (type != MetricType::Histogram) {
    out[series_name(name, labels)] =
        type == MetricType::Counter ? metric.counter.value : metric.gauge.value;
    return;
  }
  for (const ClientMetric::Bucket& bucket : metric.histogram.bucket) {
    Labels with_bound = labels;
    with_bound.emplace_back(
        "le", std::isinf(bucket.upper_bound) ? "+Inf" : fmt::format("{}", bucket.upper_bound));
    out[series_name(name + "_bucket", with_bound)] = static_cast<double>(bucket.cumulative_count);
  }
  out[series_name(name + "_sum", labels)] = metric.histogram.sample_sum;
  out[series_name(name + "_count", labels)] = static_cast<double>(metric.histogram.sample_count);
}

PushedSeries parse_pushed(const std::map<std::string, double>& series) {
  PushedSeries parsed;
  for (const auto& [name, value] : series) {
    if (auto one = parse_one(name, value); one && std::isfinite(value)) {
      parsed.push_back(std::move(*one));
    }
  }
  return parsed;
}

void merge_pushed(std::map<std::string, MetricFamily>& families, const Label& source,
                  const PushedSeries& series) {
  Histograms histograms = take_buckets(series);
  for (const PushedValue& value : series) {
    if (belongs(histograms, value)) continue;
    const bool total = value.name.ends_with("_total");
    MetricFamily* family =
        family_of(families, value.name, total ? MetricType::Counter : MetricType::Gauge, true);
    if (family == nullptr) continue;
    ClientMetric metric = labelled(source, value.labels);
    metric.counter.value = value.value;
    metric.gauge.value = value.value;
    family->metric.push_back(std::move(metric));
  }
  for (auto& [key, histogram] : histograms) {
    MetricFamily* family = family_of(families, key.first, MetricType::Histogram, false);
    if (family == nullptr) continue;
    ClientMetric metric = labelled(source, key.second);
    metric.histogram = std::move(histogram);
    family->metric.push_back(std::move(metric));
  }
}

}  // namespace tandem::metrics

#include "bench/report_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem::bench {
namespace {

using Runs = std::vector<RunResult>;

constexpr int kBins = 48;
constexpr int kTailPoints = 240;
constexpr double kGapFloorMs = 0.05;  // Below it, chunks came in one read

const Samples& gaps_of(const RunResult& run) {
  return run.interference ? run.interference->gaps_ms : run.itl_ms;
}

double longest_run_s(const Runs& runs) {
  double longest = 0.0;
  for (const RunResult& run : runs) longest = std::max(longest, run.duration_s);
  return longest;
}

PlotAxis time_axis(const Runs& runs) {
  return {0.0, std::max(longest_run_s(runs), 1e-3), false, "seconds since start"};
}

std::string named(const Runs& runs, size_t run, const std::string& text) {
  return runs.size() == 1 ? text : fmt::format("{} {}", runs[run].label, text);
}

// A step line over bins whose borders are given.
PlotSeries histogram(const std::vector<double>& sorted, const std::vector<double>& borders) {
  PlotSeries series;
  series.filled = true;
  auto from = sorted.begin();
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    const bool last = i + 2 == borders.size();
    const auto to = last ? sorted.end() : std::lower_bound(from, sorted.end(), borders[i + 1]);
    const double count = static_cast<double>(to - from);
    series.points.emplace_back(borders[i], count);
    series.points.emplace_back(borders[i + 1], count);
    from = to;
  }
  return series;
}

std::vector<double> bin_borders(const PlotAxis& axis) {
  std::vector<double> borders;
  for (int i = 0; i <= kBins; ++i) {
    const double share = static_cast<double>(i) / kBins;
    borders.push_back(axis.logarithmic ? axis.low * std::pow(axis.high / axis.low, share)
                                       : axis.low + (axis.high - axis.low) * share);
  }
  return borders;
}

PlotSeries steps_over_time(const Timeline& timeline, const std::vector<double>& values,
                           const std::string& color) {
  PlotSeries series;
  series.color = color;
  for (size_t i = 0; i < values.size(); ++i)
    series.points.emplace_back((static_cast<double>(i) + 0.5) * timeline.step_s, values[i]);
  return series;
}

// The longest gap that reaches into each step, 0 where there is none.
std::vector<double> worst_gaps(const RunResult& run) {
  const double step_s = run.timeline.step_s;
  std::vector<double> worst(run.timeline.running.size());
  for (const RequestRecord& request : run.requests) {
    if (!request.ok || request.group != Group::kMain) continue;
    const auto& times = request.token_times_s;
    for (size_t i = 1; i < times.size(); ++i) {
      const double gap_ms = (times[i] - times[i - 1]) * 1000.0;
      const size_t last = std::min(static_cast<size_t>(times[i] / step_s), worst.size() - 1);
      for (size_t step = static_cast<size_t>(times[i - 1] / step_s); step <= last; ++step)
        worst[step] = std::max(worst[step], gap_ms);
    }
  }
  return worst;
}

}  // namespace

Plot ttft_plot(const Runs& runs) {
  double low = INFINITY, high = 0.0, median = 0.0;
  for (const RunResult& run : runs) {
    if (run.ttft_ms.empty()) continue;
    low = std::min(low, run.ttft_ms.min());
    high = std::max(high, run.ttft_ms.max());
    median = std::max(median, run.ttft_ms.median());
  }
  Plot plot;
  plot.description = "Distribution of the time to first token";
  const bool wide = high > 12.0 * std::max(std::min(low, median), 1e-3);
  plot.x = wide ? log_axis(low * 0.9, high * 1.1, "time to first token (ms), logarithmic")
                : axis_from_zero(high, "time to first token (ms)");
  const auto borders = bin_borders(plot.x);
  double tallest = 0.0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].ttft_ms.empty()) continue;
    PlotSeries series = histogram(runs[i].ttft_ms.sorted(), borders);
    series.color = run_color(i);
    for (const auto& point : series.points) tallest = std::max(tallest, point.second);
    plot.series.push_back(std::move(series));
    plot.markers.push_back(
        {runs[i].ttft_ms.median(), run_color(i),
         named(runs, i, fmt::format("median {:.0f} ms", runs[i].ttft_ms.median()))});
  }
  plot.y = axis_from_zero(tallest, "requests");
  return plot;
}

Plot gap_plot(const Runs& runs) {
  Plot plot;
  plot.description = "Share of gaps between tokens that are longer than x";
  double low = INFINITY, high = 0.0, rarest = 0.1;
  for (const RunResult& run : runs) {
    const Samples& gaps = gaps_of(run);
    if (gaps.empty()) continue;
    low = std::min(low, std::max(gaps.percentile(1.0), kGapFloorMs));
    high = std::max(high, gaps.max());
    rarest = std::min(rarest, 1.0 / static_cast<double>(gaps.size()));
  }
  plot.x = log_axis(std::isfinite(low) ? low * 0.8 : 1.0, high * 1.1, "gap (ms), logarithmic");
  plot.y = log_axis(rarest, 1.0, "share of gaps longer than x, logarithmic");
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& sorted = gaps_of(runs[i]).sorted();
    if (sorted.empty()) continue;
    const double count = static_cast<double>(sorted.size());
    PlotSeries series;
    series.color = run_color(i);
    // Points evenly spaced on the logarithmic share axis: few in the bulk, all of them in the tail.
    size_t previous = sorted.size();
    for (int step = 0; step <= kTailPoints; ++step) {
      const double share = std::pow(1.0 / count, static_cast<double>(step) / kTailPoints);
      const size_t rank =
          sorted.size() -
          std::clamp<size_t>(static_cast<size_t>(share * count + 0.5), 1, sorted.size());
      if (rank == previous) continue;
      previous = rank;
      series.points.emplace_back(sorted[rank], static_cast<double>(sorted.size() - rank) / count);
    }
    plot.series.push_back(std::move(series));
    plot.markers.push_back(
        {sorted.back(), run_color(i), named(runs, i, fmt::format("max {:.0f} ms", sorted.back()))});
  }
  return plot;
}

Plot stall_plot(const Runs& runs) {
  Plot plot;
  plot.description = "Longest gap between tokens over time";
  plot.x = time_axis(runs);
  double low = INFINITY, high = 0.0;
  for (size_t i = 0; i < runs.size(); ++i) {
    PlotSeries series = steps_over_time(runs[i].timeline, worst_gaps(runs[i]), run_color(i));
    std::erase_if(series.points, [](const auto& point) { return point.second <= 0.0; });
    series.line_width = 1.4;
    for (const auto& point : series.points) {
      low = std::min(low, std::max(point.second, kGapFloorMs));
      high = std::max(high, point.second);
    }
    plot.series.push_back(std::move(series));
  }
  plot.y =
      log_axis(std::isfinite(low) ? low * 0.8 : 1.0, high * 1.2, "longest gap (ms), logarithmic");
  return plot;
}

Plot throughput_plot(const Runs& runs) {
  Plot plot;
  plot.description = "Tokens per second over time";
  plot.x = time_axis(runs);
  double highest = 0.0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& values = runs[i].timeline.tokens_per_s;
    plot.series.push_back(steps_over_time(runs[i].timeline, values, run_color(i)));
    plot.series.back().line_width = 1.5;
    for (double value : values) highest = std::max(highest, value);
  }
  plot.y = axis_from_zero(highest, "tokens per second");
  return plot;
}

Plot load_plot(const Runs& runs, size_t run) {
  Plot plot;
  plot.description = "Running and waiting requests over time";
  plot.x = time_axis(runs);
  double highest = 0.0;
  for (const RunResult& each : runs)
    for (size_t i = 0; i < each.timeline.running.size(); ++i)
      highest = std::max(highest, each.timeline.running[i] + each.timeline.waiting[i]);
  plot.y = axis_from_zero(highest, "requests");
  const Timeline& timeline = runs[run].timeline;
  PlotSeries running = steps_over_time(timeline, timeline.running, run_color(run));
  running.filled = true;
  PlotSeries waiting = running;
  waiting.color = "var(--waiting)";
  waiting.base = timeline.running;
  for (size_t i = 0; i < waiting.points.size(); ++i)
    waiting.points[i].second += timeline.waiting[i];
  plot.series.push_back(std::move(waiting));
  plot.series.push_back(std::move(running));
  return plot;
}

}  // namespace tandem::bench

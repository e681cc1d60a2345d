#include "simulator/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/html_report.h"
#include "bench/json_report.h"
#include "bench/summary.h"
#include "bench/svg_plot.h"

namespace tandem::simulator {
namespace {

using bench::Plot;
using bench::PlotSeries;
using nlohmann::ordered_json;

constexpr int kBins = 48;
constexpr size_t kTimelinePoints = 400;

double part(int64_t count, int64_t of) {
  return of > 0 ? static_cast<double>(count) / static_cast<double>(of) : 0;
}

std::string roles_text(const std::map<Role, int>& roles) {
  std::string text;
  for (const auto& [role, count] : roles)
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, role_name(role));
  return text;
}

ordered_json simulation_json(const Settings& settings, const ClusterOptions& options,
                             const ClusterResult& r) {
  ordered_json out{{"profile", settings.profile},
                   {"split", settings.split},
                   {"policy", options.config.scheduler.policy},
                   {"workers", options.workers.size()},
                   {"seed", settings.seed},
                   {"ttft_limit_ms", settings.ttft_ms},
                   {"tpot_limit_ms", settings.tpot_ms},
                   {"within_ttft", part(r.within_ttft, r.requests)},
                   {"within_tpot", part(r.within_tpot, r.requests)},
                   {"within_both", r.attainment()},
                   {"prompt_tokens", r.prompt_tokens},
                   {"cached_tokens", r.cached_tokens},
                   {"pulled_tokens", r.pulled_tokens},
                   {"network_bytes", r.network_bytes},
                   {"prefill_busy", r.prefill_busy},
                   {"decode_busy", r.decode_busy},
                   {"parked", r.parked},
                   {"resumed", r.resumed},
                   {"events", r.events}};
  out["choices"] = ordered_json::object();
  for (const auto& [what, count] : r.choices) out["choices"][what] = count;
  out["role_changes"] = ordered_json::array();
  for (const RoleChange& change : r.role_changes)
    out["role_changes"].push_back({{"at_s", change.at_s},
                                   {"worker", change.worker},
                                   {"from", role_name(change.from)},
                                   {"to", role_name(change.to)},
                                   {"reason", change.reason}});
  return out;
}

std::string simulation_table(const Settings& settings, const ClusterOptions& options,
                             const ClusterResult& r) {
  std::string text = "  Simulation\n  ----------\n";
  const auto row = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<30}{}\n", name, value);
  };
  row("workers", fmt::format("{} x {}, split {}, policy {}", options.workers.size(),
                             settings.profile, settings.split, options.config.scheduler.policy));
  row("within both limits",
      fmt::format("{:.1f}% (first token {:g} ms: {:.1f}%; per token {:g} ms: {:.1f}%)",
                  100 * r.attainment(), settings.ttft_ms, 100 * part(r.within_ttft, r.requests),
                  settings.tpot_ms, 100 * part(r.within_tpot, r.requests)));
  row("prompt tokens from caches",
      fmt::format("{:.1f}%", 100 * part(r.cached_tokens, r.prompt_tokens)));
  row("busy",
      fmt::format("prefill {:.0f}%, others {:.0f}%", 100 * r.prefill_busy, 100 * r.decode_busy));
  for (const auto& [what, count] : r.choices) row("chosen: " + what, std::to_string(count));
  if (r.parked > 0) row("parked in host memory", std::to_string(r.parked));
  if (r.resumed > 0) row("resumed after a role change", std::to_string(r.resumed));
  if (!r.timeline.empty())
    row("roles", roles_text(r.timeline.front().roles) + "  ->  " +
                     roles_text(r.timeline.back().roles) +
                     fmt::format("  ({} changes)", r.role_changes.size()));
  return text + "\n";
}

Plot tpot_plot(const bench::Samples& tpot, double limit_ms) {
  Plot plot;
  plot.description = "Distribution of the time per output token";
  plot.x = bench::axis_from_zero(std::max(tpot.percentile(99.5), limit_ms),
                                 "time per output token (ms)");
  PlotSeries series;
  series.filled = true;
  series.color = bench::run_color(0);
  double tallest = 0;
  const double step = plot.x.high / kBins;
  auto from = tpot.sorted().begin();
  for (int i = 0; i < kBins; ++i) {
    const auto to = std::lower_bound(from, tpot.sorted().end(), step * (i + 1));
    const auto count = static_cast<double>(to - from);
    series.points.emplace_back(step * i, count);
    series.points.emplace_back(step * (i + 1), count);
    tallest = std::max(tallest, count);
    from = to;
  }
  plot.series.push_back(std::move(series));
  plot.markers.push_back({limit_ms, "var(--bad)", fmt::format("limit {:g} ms", limit_ms)});
  plot.y = bench::axis_from_zero(tallest, "requests");
  return plot;
}

template <class Value>
PlotSeries over_time(const std::vector<TimelinePoint>& timeline, const std::string& color,
                     Value value) {
  PlotSeries series;
  series.color = color;
  const size_t stride = std::max<size_t>(1, timeline.size() / kTimelinePoints);
  for (size_t i = 0; i < timeline.size(); i += stride) {
    if (!series.points.empty())
      series.points.emplace_back(timeline[i].at_s, series.points.back().second);
    series.points.emplace_back(timeline[i].at_s, value(timeline[i]));
  }
  return series;
}

Plot time_plot(const std::vector<TimelinePoint>& timeline, std::vector<PlotSeries> series,
               std::string description, std::string unit) {
  Plot plot;
  plot.description = std::move(description);
  double highest = 1;
  for (const PlotSeries& each : series)
    for (const auto& point : each.points) highest = std::max(highest, point.second);
  plot.x = {0, timeline.empty() ? 1 : std::max(1.0, timeline.back().at_s), false,
            "seconds since start"};
  plot.y = bench::axis_from_zero(highest, std::move(unit));
  plot.series = std::move(series);
  plot.width = 1130;
  return plot;
}

std::string card(const std::string& title, const std::string& text, const Plot& plot) {
  return fmt::format("<section class=\"card\"><h2>{}</h2><p class=\"sub\">{}</p>{}</section>",
                     title, text, bench::render(plot));
}

std::string dot(size_t color) {
  return fmt::format("<i class=\"dot\" style=\"background:{}\"></i>", bench::run_color(color));
}

std::string simulation_plots(const Settings& settings, const ClusterResult& r,
                             const bench::Samples& tpot) {
  using P = const TimelinePoint&;
  const auto role = [](Role which) {
    return [which](P point) {
      const auto found = point.roles.find(which);
      return found == point.roles.end() ? 0.0 : static_cast<double>(found->second);
    };
  };
  const Plot roles = time_plot(r.timeline,
                               {over_time(r.timeline, bench::run_color(0), role(Role::kPrefill)),
                                over_time(r.timeline, bench::run_color(1), role(Role::kDecode)),
                                over_time(r.timeline, bench::run_color(2), role(Role::kCoupled))},
                               "Workers by role over time", "workers");
  const Plot queues = time_plot(
      r.timeline,
      {over_time(r.timeline, bench::run_color(0), [](P p) { return p.prompts + p.queued; }),
       over_time(r.timeline, bench::run_color(1), [](P p) { return p.decoding; })},
      "Requests by phase over time", "requests");
  return card("Roles", dot(0) + "prefill &nbsp; " + dot(1) + "decode &nbsp; " + dot(2) + "coupled",
              roles) +
         card("Requests", dot(0) + "waiting or prefilling &nbsp; " + dot(1) + "decoding", queues) +
         card("Time per output token", "One value per request.", tpot_plot(tpot, settings.tpot_ms));
}

}  // namespace

Report make_report(const Settings& settings, const ClusterOptions& options, ClusterResult result) {
  bench::Options load = settings.load;
  load.speed = settings.rate_scale;
  bench::RunResult run = bench::evaluate(load, std::move(result.records));
  run.date = "virtual time";  // The same input gives the same bytes
  run.model = settings.profile;
  run.url = fmt::format("{} simulated workers", options.workers.size());
  run.label = load.label.empty() ? settings.split : load.label;

  Report report;
  ordered_json json = ordered_json::parse(bench::json_report(load, {run}));
  json["simulation"] = simulation_json(settings, options, result);
  report.json = json.dump(2) + "\n";
  if (!load.html_file.empty()) {
    report.html = bench::html_report(load, {run});
    const size_t footer = report.html.find("<footer>");
    report.html.insert(footer, simulation_plots(settings, result, run.tpot_ms));
  }
  report.table = bench::summary_table(load, {run}) + simulation_table(settings, options, result);
  return report;
}

}  // namespace tandem::simulator

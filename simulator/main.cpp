// tandem-sim: replays a load through the scheduler against simulated workers. See --help.
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "bench/json_report.h"
#include "simulator/goodput.h"
#include "simulator/replay.h"
#include "simulator/report.h"

namespace {

using namespace tandem;
using namespace tandem::simulator;
using nlohmann::ordered_json;

// Trace rows, cut to --max-input and --max-output.
Result<std::vector<bench::TraceRow>> load_rows(const Settings& settings) {
  auto rows =
      bench::load_trace(settings.load.trace, static_cast<size_t>(settings.load.trace_limit));
  if (!rows.ok()) return rows;
  for (bench::TraceRow& row : *rows) {
    if (settings.load.max_input > 0)
      row.input_tokens = std::min(row.input_tokens, settings.load.max_input);
    if (settings.load.max_output > 0)
      row.output_tokens = std::min(row.output_tokens, settings.load.max_output);
  }
  return rows;
}

double rows_per_s(const std::vector<bench::TraceRow>& rows) {
  return static_cast<double>(rows.size()) / trace_span_s(rows);
}

Status run_goodput(const Settings& settings, const ClusterOptions& options) {
  const auto rows = load_rows(settings);
  if (!rows.ok()) return rows.status();
  ordered_json runs = ordered_json::array();
  double sum = 0,
         scale = settings.rate > 0 ? settings.rate / rows_per_s(*rows) : settings.rate_scale;
  for (int i = 0; i < settings.seeds; ++i) {
    const uint64_t seed = settings.seed + static_cast<uint64_t>(i);
    const Goodput found = find_goodput(options, *rows,
                                       {.attainment = settings.attainment,
                                        .window_s = settings.window_s,
                                        .seed = seed,
                                        .start_scale = scale});
    if (found.scale > 0) scale = found.scale;
    sum += found.requests_per_s_per_worker;
    runs.push_back({{"seed", seed},
                    {"scale", found.scale},
                    {"requests_per_s", found.requests_per_s},
                    {"requests_per_s_per_worker", found.requests_per_s_per_worker},
                    {"within_both", found.attainment},
                    {"runs", found.runs}});
  }
  const double mean = sum / settings.seeds;
  const bool to_stdout = settings.load.json_file == "-";
  fmt::print(to_stdout ? stderr : stdout,
             "goodput {:.3f} requests/s per worker (mean of {} seeds; {} workers, split {})\n",
             mean, settings.seeds, options.workers.size(), settings.split);
  if (settings.load.json_file.empty()) return {};
  const ordered_json out{{"split", settings.split},
                         {"policy", options.config.scheduler.policy},
                         {"workers", options.workers.size()},
                         {"goodput_per_worker", mean},
                         {"seeds", runs}};
  return bench::write_text(settings.load.json_file, out.dump(2) + "\n");
}

Status run_load(Settings settings, ClusterOptions options) {
  std::vector<SimRequest> requests;
  if (settings.load.trace.empty()) {
    auto made = synthetic_load(settings.load);
    if (!made.ok()) return made.status();
    requests = std::move(*made);
  } else {
    const auto rows = load_rows(settings);
    if (!rows.ok()) return rows.status();
    if (settings.rate > 0) settings.rate_scale = settings.rate / rows_per_s(*rows);
    requests = cut_trace(
        *rows,
        {.scale = settings.rate_scale, .window_s = settings.window_s, .seed = settings.seed});
  }
  options.token_times = true;
  options.decisions = !settings.decisions_file.empty();
  const auto begin = std::chrono::steady_clock::now();
  ClusterResult result = simulate(options, requests);
  const double wall_s = to_seconds(std::chrono::steady_clock::now() - begin);
  fmt::print(stderr, "{} requests, {:.0f} virtual seconds, {} events in {:.2f} s\n",
             result.requests, result.records.duration_s, result.events, wall_s);
  if (options.decisions) {
    std::string lines;
    for (const auto& decision : result.decisions) lines += scheduler::decision_line(decision);
    TANDEM_RETURN_IF_ERROR(bench::write_text(settings.decisions_file, lines));
  }
  const Report report = make_report(settings, options, std::move(result));
  const bench::Options& load = settings.load;
  fmt::print(load.json_file == "-" ? stderr : stdout, "{}", report.table);
  if (!load.json_file.empty())
    TANDEM_RETURN_IF_ERROR(bench::write_text(load.json_file, report.json));
  if (!load.html_file.empty())
    TANDEM_RETURN_IF_ERROR(bench::write_text(load.html_file, report.html));
  return {};
}

Status run(const Settings& settings) {
  if (!settings.replay_file.empty()) return replay_decisions(settings);
  auto options = make_cluster(settings);
  if (!options.ok()) return options.status();
  return settings.goodput ? run_goodput(settings, *options)
                          : run_load(settings, std::move(*options));
}

}  // namespace

int main(int argc, char** argv) {
  const auto settings = parse_settings({argv + 1, argv + argc});
  if (settings.ok() && settings->help) {
    fmt::print("{}", help_text());
    return 0;
  }
  const Status status = settings.ok() ? run(*settings) : settings.status();
  if (status.ok()) return 0;
  fmt::print(stderr, "tandem-sim: {}\n", status.message());
  return settings.ok() ? 1 : 2;
}

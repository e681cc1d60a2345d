#include "cli/plan_command.h"

#include <fmt/format.h>

#include <charconv>

#include "bench/json_report.h"
#include "cli/arguments.h"
#include "simulator/planner.h"

namespace tandem::cli {
namespace {

constexpr int kWorkersMax = 64;
constexpr int kWorkersMaxLimit = 1024;

// The words that mean the same to tandem-sim.
constexpr const char* kSimulatorWords[] = {
    "--trace",      "--profile", "--ttft-ms",    "--tpot-ms", "--rate",  "--rate-scale",
    "--attainment", "--window",  "--net-gbytes", "--policy",  "--slots", "--limit"};

Result<int> workers_max(const Arguments& arguments) {
  const std::string text = arguments.value("--workers-max", std::to_string(kWorkersMax));
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && value >= 1 &&
      value <= kWorkersMaxLimit)
    return value;
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("--workers-max: found {}; allowed: 1 to {}", text, kWorkersMaxLimit));
}

}  // namespace

Status run_plan(const Words& words) {
  AllowedArguments allowed{.with_value = {"--workers-max", "--out"}, .flags = {"--json"}};
  allowed.with_value.insert(allowed.with_value.end(), std::begin(kSimulatorWords),
                            std::end(kSimulatorWords));
  const auto arguments = parse_arguments(words, allowed);
  if (!arguments) return arguments.status();
  const auto most = workers_max(*arguments);
  if (!most) return most.status();
  Words forwarded;
  for (const char* name : kSimulatorWords)
    if (arguments->has(name)) forwarded.insert(forwarded.end(), {name, arguments->value(name)});
  auto settings = simulator::parse_settings(forwarded);
  if (!settings) return settings.status();
  if (settings->load.trace.empty())
    return {ErrorCode::kInvalidArgument, "for which load? For example: --trace trace.csv"};
  const auto rows =
      bench::load_trace(settings->load.trace, static_cast<size_t>(settings->load.trace_limit));
  if (!rows.ok()) return rows.status();
  if (settings->rate > 0)
    settings->rate_scale =
        settings->rate * simulator::trace_span_s(*rows) / static_cast<double>(rows->size());
  const auto plan = simulator::make_plan(*settings, *rows, *most);
  if (!plan.ok()) return plan.status();

  const bool json = arguments->has("--json");
  fmt::print("{}", json ? simulator::plan_json(*settings, *plan)
                        : simulator::plan_table(*settings, *plan));
  if (!json && !arguments->has("--profile"))
    fmt::print("  The profile is the default; --profile names another.\n");
  const std::string config = simulator::plan_config(*settings, *plan);
  // What is written starts, or is not written.
  if (const auto parsed = parse_config(config, "plan"); !parsed.ok()) return parsed.status();
  if (!arguments->has("--out")) {
    if (!json) fmt::print("  --out FILE writes a configuration for `tandem up`.\n\n");
    return {};
  }
  TANDEM_RETURN_IF_ERROR(bench::write_text(arguments->value("--out"), config));
  if (!json) fmt::print("  written: {}\n\n", arguments->value("--out"));
  return {};
}

}  // namespace tandem::cli

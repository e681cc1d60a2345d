#include "bench/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace tandem::bench {
namespace {

using Runs = std::vector<RunResult>;
using Value = std::function<double(const RunResult&)>;

std::vector<double> values_of(const Runs& runs, const Value& value) {
  std::vector<double> values;
  for (const RunResult& run : runs) values.push_back(value(run));
  return values;
}

SummarySection latency_section(const Options& options, const Runs& runs, const std::string& title,
                               Samples RunResult::*metric) {
  SummarySection section{title, {}, true};
  const auto add = [&](const std::string& name, const std::function<double(const Samples&)>& of) {
    section.rows.push_back(
        {name, "ms", values_of(runs, [&](const RunResult& run) { return of(run.*metric); }), 1});
  };
  add("mean", [](const Samples& samples) { return samples.mean(); });
  add("median", [](const Samples& samples) { return samples.median(); });
  for (double percent : options.percentiles)
    add(fmt::format("p{:g}", percent),
        [percent](const Samples& samples) { return samples.percentile(percent); });
  add("max", [](const Samples& samples) { return samples.max(); });
  return section;
}

SummarySection interference_section(const Runs& runs) {
  const auto of = [&](const std::function<double(const Interference&)>& value) {
    return values_of(runs, [&](const RunResult& run) {
      return run.interference ? value(*run.interference) : 0.0;
    });
  };
  const auto gap = [&](double percent) {
    return of([percent](const Interference& i) { return i.gaps_ms.percentile(percent); });
  };
  const auto ratio = [&](double percent) {
    return of([percent](const Interference& i) { return i.ratio(percent); });
  };
  return {"Gaps of the steady streams",
          {{"median", "ms", gap(50.0), 1},
           {"p99", "ms", gap(99.0), 1},
           {"p99.9", "ms", gap(99.9), 1},
           {"max", "ms", gap(100.0), 1},
           {"p99 / median", "x", ratio(99.0), 2},
           {"p99.9 / median", "x", ratio(99.9), 2},
           {"max / median", "x", ratio(100.0), 2},
           {"steady TTFT p99", "ms",
            of([](const Interference& i) { return i.steady_ttft_ms.percentile(99.0); }), 1},
           {"long prompt TTFT median", "ms",
            of([](const Interference& i) { return i.long_ttft_ms.median(); }), 1},
           {"long prompts", "",
            of([](const Interference& i) { return static_cast<double>(i.long_prompts); }), 0, true,
            true}},
          false};
}

SummarySection request_section(const Runs& runs) {
  const auto count = [&](const std::string& name, const std::string& unit, const Value& value) {
    return SummaryRow{name, unit, values_of(runs, value), 0, true, true};
  };
  using R = const RunResult&;
  SummarySection section{"Requests", {}, false};
  section.rows.push_back(
      count("completed", "", [](R r) { return static_cast<double>(r.completed); }));
  section.rows.push_back(
      {"failed", "", values_of(runs, [](R r) { return static_cast<double>(r.failed); }), 0});
  section.rows.push_back(
      count("input tokens", "", [](R r) { return static_cast<double>(r.input_tokens); }));
  section.rows.push_back(
      count("output tokens", "", [](R r) { return static_cast<double>(r.output_tokens); }));
  section.rows.push_back(
      count("peak at once", "", [](R r) { return static_cast<double>(r.peak_in_flight); }));
  section.rows.push_back(
      {"duration", "s", values_of(runs, [](R r) { return r.duration_s; }), 1, false, true});
  return section;
}

SummarySection throughput_section(const Runs& runs) {
  using R = const RunResult&;
  SummarySection section{"Throughput", {}, false};
  const auto add = [&](const std::string& name, const std::string& unit, int decimals,
                       const Value& value) {
    section.rows.push_back({name, unit, values_of(runs, value), decimals, true});
  };
  add("requests", "/s", 2, [](R r) { return r.requests_per_s; });
  if (runs.front().good_requests_per_s)
    add("good requests", "/s", 2, [](R r) { return r.good_requests_per_s.value_or(0.0); });
  add("output tokens", "/s", 1, [](R r) { return r.output_tokens_per_s; });
  add("all tokens", "/s", 1, [](R r) { return r.total_tokens_per_s; });
  add("best second", "tokens", 0, [](R r) { return r.max_output_tokens_per_s; });
  return section;
}

constexpr int kNameWidth = 30;
constexpr int kValueWidth = 16;

std::string row_text(const SummaryRow& row) {
  std::string name = row.name + (row.unit.empty() ? "" : " (" + row.unit + ")");
  std::string line = fmt::format("  {:<{}}", name, kNameWidth);
  for (double value : row.values)
    line += fmt::format("{:>{}}", format_number(value, row.decimals), kValueWidth);
  // Ratios to the first run.
  for (size_t i = 1; i < row.values.size(); ++i) {
    line += row.values[0] > 0.0 && !row.neutral
                ? fmt::format("{:>10.2f}x", row.values[i] / row.values[0])
                : fmt::format("{:>11}", "");
  }
  return line + "\n";
}

// One run: a line per metric, a column per statistic.
std::string latency_table(const Options& options, const RunResult& run) {
  constexpr int kWidth = 11;
  std::string text = fmt::format("\n  {:<{}}{:>{}}{:>{}}", "Latency (ms)", kNameWidth, "mean",
                                 kWidth, "median", kWidth);
  for (double percent : options.percentiles)
    text += fmt::format("{:>{}}", fmt::format("p{:g}", percent), kWidth);
  text += fmt::format("{:>{}}\n  ------------\n", "max", kWidth);
  const auto line = [&](const char* name, const Samples& samples) {
    if (samples.empty()) return;
    text += fmt::format("  {:<{}}", name, kNameWidth);
    const auto cell = [&](double value) {
      text += fmt::format("{:>{}}", format_number(value, 1), kWidth);
    };
    cell(samples.mean());
    cell(samples.median());
    for (double percent : options.percentiles) cell(samples.percentile(percent));
    cell(samples.max());
    text += "\n";
  };
  line("time to first token", run.ttft_ms);
  line("time per output token", run.tpot_ms);
  line("inter-token latency", run.itl_ms);
  line("end to end", run.e2el_ms);
  return text;
}

std::string clip(const std::string& text, size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 1) + "~";
}

std::string notes_text(const Options& options, const RunResult& run) {
  std::string text;
  const std::string prefix = run.label.empty() ? "" : run.label + ": ";
  if (!run.stopped_because.empty()) text += fmt::format("  {}{}\n", prefix, run.stopped_because);
  if (run.completed > 0 && !run.counted_by_server)
    text += fmt::format("  {}no usage from the server: tokens are counted as chunks\n", prefix);
  if (run.short_outputs > 0)
    text +=
        fmt::format("  {}{} answers ended before their output length\n", prefix, run.short_outputs);
  if (options.open_loop() && run.client_queue_ms.percentile(99.0) > 100.0 &&
      options.concurrency == 0)
    text += fmt::format("  {}this client sent late (p99 {:.0f} ms): it is short of CPU\n", prefix,
                        run.client_queue_ms.percentile(99.0));
  for (const auto& [reason, count] : run.failures)
    text += fmt::format("  {}{:>6} failed: {}\n", prefix, count, reason);
  return text;
}

}  // namespace

std::vector<SummarySection> summarize(const Options& options, const Runs& runs) {
  std::vector<SummarySection> sections;
  if (runs.front().interference) sections.push_back(interference_section(runs));
  sections.push_back(request_section(runs));
  sections.push_back(throughput_section(runs));
  const auto completed = [](const RunResult& run) { return run.completed > 0; };
  if (std::none_of(runs.begin(), runs.end(), completed)) return sections;
  sections.push_back(latency_section(options, runs, "Time to first token", &RunResult::ttft_ms));
  sections.push_back(latency_section(options, runs, "Time per output token", &RunResult::tpot_ms));
  sections.push_back(latency_section(options, runs, "Inter-token latency", &RunResult::itl_ms));
  sections.push_back(latency_section(options, runs, "End to end", &RunResult::e2el_ms));
  return sections;
}

std::string format_number(double value, int decimals) {
  std::string text = fmt::format("{:.{}f}", value, decimals);
  const size_t point = std::min(text.find('.'), text.size());
  const size_t first = text.starts_with('-') ? 1 : 0;
  for (size_t i = point; i > first + 3;) text.insert(i -= 3, ",");
  return text;
}

std::string summary_table(const Options& options, const Runs& runs) {
  std::string text = fmt::format("\n  {}\n", runs.front().load);
  if (runs.size() == 1) text += fmt::format("  {} at {}\n", runs[0].model, runs[0].url);
  if (runs.size() > 1) {
    text += fmt::format("  {:<{}}", "", kNameWidth);
    for (const RunResult& run : runs)
      text += fmt::format("{:>{}}", clip(run.label, kValueWidth - 1), kValueWidth);
    for (size_t i = 1; i < runs.size(); ++i)
      text += fmt::format("{:>11}", runs.size() == 2 ? "ratio" : fmt::format("{}:1", i + 1));
    text += "\n";
  }
  const bool single = runs.size() == 1;
  for (const SummarySection& section : summarize(options, runs)) {
    if (single && section.latency) continue;  // All of them together, below.
    text += fmt::format("\n  {}\n  {}\n", section.title, std::string(section.title.size(), '-'));
    for (const SummaryRow& row : section.rows) text += row_text(row);
  }
  if (single && runs[0].completed > 0) text += latency_table(options, runs[0]);
  std::string notes;
  for (const RunResult& run : runs) notes += notes_text(options, run);
  if (!notes.empty()) text += "\n  Notes\n  -----\n" + notes;
  return text + "\n";
}

}  // namespace tandem::bench

#include "bench/json_report.h"

#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

namespace tandem::bench {
namespace {

using nlohmann::ordered_json;

void add_metric(ordered_json& out, const Options& options, const std::string& name,
                const Samples& samples) {
  out["mean_" + name + "_ms"] = samples.mean();
  out["median_" + name + "_ms"] = samples.median();
  out["std_" + name + "_ms"] = samples.stddev();
  for (double percent : options.percentiles)
    out[fmt::format("p{:g}_{}_ms", percent, name)] = samples.percentile(percent);
}

void add_details(ordered_json& out, const std::vector<RequestRecord>& requests) {
  for (const char* name : {"input_lens", "output_lens", "start_times", "ttfts", "itls", "latencies",
                           "queue_times", "generated_texts", "errors"})
    out[name] = ordered_json::array();
  for (const RequestRecord& request : requests) {
    const auto& times = request.token_times_s;
    ordered_json gaps = ordered_json::array();
    for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
    out["input_lens"].push_back(request.input_tokens);
    out["output_lens"].push_back(request.output_tokens);
    out["start_times"].push_back(request.start_s);
    out["ttfts"].push_back(times.empty() ? 0.0 : request.ttft_s());
    out["itls"].push_back(std::move(gaps));
    out["latencies"].push_back(times.empty() ? 0.0 : request.e2el_s());
    out["queue_times"].push_back(request.queue_s());
    out["generated_texts"].push_back(request.text);
    out["errors"].push_back(request.error);
  }
}

ordered_json interference_json(const Interference& interference) {
  const Samples& gaps = interference.gaps_ms;
  ordered_json out{{"steady_gaps", gaps.size()},
                   {"long_prompts", interference.long_prompts},
                   {"median_gap_ms", gaps.median()},
                   {"p99_gap_ms", gaps.percentile(99.0)},
                   {"p99.9_gap_ms", gaps.percentile(99.9)},
                   {"max_gap_ms", gaps.max()},
                   {"p99_over_median", interference.ratio(99.0)},
                   {"p99.9_over_median", interference.ratio(99.9)},
                   {"max_over_median", interference.ratio(100.0)}};
  out["median_steady_ttft_ms"] = interference.steady_ttft_ms.median();
  out["p99_steady_ttft_ms"] = interference.steady_ttft_ms.percentile(99.0);
  out["median_long_ttft_ms"] = interference.long_ttft_ms.median();
  out["p99_long_ttft_ms"] = interference.long_ttft_ms.percentile(99.0);
  return out;
}

void add_header(ordered_json& out, const Options& options, const RunResult& run) {
  out["date"] = run.date;
  out["backend"] = options.endpoint == Endpoint::kChat ? "openai-chat" : "openai";
  out["label"] = run.label;
  out["url"] = run.url;
  out["model_id"] = run.model;
  out["load"] = run.load;
  out["num_prompts"] = run.requests.size();
  if (options.request_rate > 0.0)
    out["request_rate"] = options.request_rate;
  else
    out["request_rate"] = "inf";
  out["burstiness"] = options.burstiness;
  out["max_concurrency"] =
      options.concurrency > 0 ? ordered_json(options.concurrency) : ordered_json(nullptr);
}

ordered_json run_json(const Options& options, const RunResult& run) {
  ordered_json out;
  add_header(out, options, run);
  out["duration"] = run.duration_s;
  out["completed"] = run.completed;
  out["failed"] = run.failed;
  out["total_input_tokens"] = run.input_tokens;
  out["total_output_tokens"] = run.output_tokens;
  out["request_throughput"] = run.requests_per_s;
  out["request_goodput"] =
      run.good_requests_per_s ? ordered_json(*run.good_requests_per_s) : ordered_json(nullptr);
  out["output_throughput"] = run.output_tokens_per_s;
  out["total_token_throughput"] = run.total_tokens_per_s;
  out["max_output_tokens_per_s"] = run.max_output_tokens_per_s;
  out["max_concurrent_requests"] = run.max_concurrent;
  out["peak_in_flight"] = run.peak_in_flight;
  out["peak_running"] = run.peak_running;
  add_metric(out, options, "ttft", run.ttft_ms);
  add_metric(out, options, "tpot", run.tpot_ms);
  add_metric(out, options, "itl", run.itl_ms);
  add_metric(out, options, "e2el", run.e2el_ms);
  if (options.open_loop()) add_metric(out, options, "client_queue_time", run.client_queue_ms);
  out["tokens_counted_by_server"] = run.counted_by_server;
  out["failure_reasons"] = ordered_json::object();
  for (const auto& [reason, count] : run.failures) out["failure_reasons"][reason] = count;
  if (!run.stopped_because.empty()) out["stopped_because"] = run.stopped_because;
  if (run.interference) out["interference"] = interference_json(*run.interference);
  if (options.save_detailed) add_details(out, run.requests);
  return out;
}

}  // namespace

std::string json_report(const Options& options, const std::vector<RunResult>& runs) {
  ordered_json out;
  if (runs.size() == 1) {
    out = run_json(options, runs.front());
  } else {
    out["runs"] = ordered_json::array();
    for (const RunResult& run : runs) out["runs"].push_back(run_json(options, run));
  }
  return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Status write_text(const std::string& file, const std::string& text) {
  if (file == "-") {
    std::cout << text << std::flush;
    return {};
  }
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text << std::flush;
  if (!out) return {ErrorCode::kUnavailable, file + ": cannot be written"};
  return {};
}

}  // namespace tandem::bench

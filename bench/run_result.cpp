#include "bench/run_result.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

namespace tandem::bench {
namespace {

constexpr double kMs = 1000.0;
constexpr size_t kTimelineSteps = 160;
constexpr double kTimelineStepMin = 0.05;

bool is_good(const RequestRecord& request, const GoodputLimits& limits) {
  const auto within = [](const std::optional<double>& limit, double seconds) {
    return !limit || seconds * kMs <= *limit;
  };
  return within(limits.ttft_ms, request.ttft_s()) && within(limits.tpot_ms, request.tpot_s()) &&
         within(limits.e2el_ms, request.e2el_s());
}

void append_gaps(const RequestRecord& request, double until_s, std::vector<double>& gaps_ms) {
  const auto& times = request.token_times_s;
  for (size_t i = 1; i < times.size() && times[i] <= until_s; ++i)
    gaps_ms.push_back((times[i] - times[i - 1]) * kMs);
}

// Per-second peaks, second by second from the first send, as vLLM counts them.
void count_peaks(RunResult& result) {
  std::vector<double> tokens(static_cast<size_t>(result.duration_s) + 2);
  std::vector<int> concurrent(tokens.size());
  const auto second_of = [&](double time_s) {
    return std::min(static_cast<size_t>(std::max(time_s, 0.0)), tokens.size() - 1);
  };
  for (const RequestRecord& request : result.requests) {
    if (!request.ok) continue;
    for (double time_s : request.token_times_s) tokens[second_of(time_s)] += 1.0;
    const size_t last = second_of(request.token_times_s.back());
    for (size_t second = second_of(request.start_s); second <= last; ++second) ++concurrent[second];
  }
  result.max_output_tokens_per_s = *std::max_element(tokens.begin(), tokens.end());
  result.max_concurrent = *std::max_element(concurrent.begin(), concurrent.end());
}

// The most requests at one time, each from its send or from its first token to its last.
int peak_at_once(const std::vector<RequestRecord>& requests, bool from_first_token) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord& request : requests) {
    if (request.token_times_s.empty()) continue;
    changes.emplace_back(from_first_token ? request.token_times_s.front() : request.start_s, 1);
    changes.emplace_back(request.token_times_s.back(), -1);
  }
  std::sort(changes.begin(), changes.end());  // At one time, ends come first.
  int now = 0, peak = 0;
  for (const auto& [time_s, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

// Adds the share of every step that lies within [from, to).
void add_presence(std::vector<double>& steps, double step_s, double from_s, double to_s) {
  if (to_s <= from_s) return;
  const size_t first = static_cast<size_t>(std::max(from_s, 0.0) / step_s);
  for (size_t i = first; i < steps.size(); ++i) {
    const double begin = static_cast<double>(i) * step_s;
    if (begin >= to_s) return;
    steps[i] += (std::min(to_s, begin + step_s) - std::max(from_s, begin)) / step_s;
  }
}

Timeline make_timeline(const std::vector<RequestRecord>& requests, double duration_s) {
  Timeline timeline;
  timeline.step_s = std::max(duration_s / static_cast<double>(kTimelineSteps), kTimelineStepMin);
  const size_t steps = static_cast<size_t>(std::ceil(duration_s / timeline.step_s)) + 1;
  timeline.waiting.resize(steps);
  timeline.running.resize(steps);
  timeline.tokens_per_s.resize(steps);
  for (const RequestRecord& request : requests) {
    const auto& times = request.token_times_s;
    if (times.empty()) continue;
    add_presence(timeline.waiting, timeline.step_s, request.start_s, times.front());
    add_presence(timeline.running, timeline.step_s, times.front(), times.back());
    for (double time_s : times) {
      const size_t step = std::min(static_cast<size_t>(time_s / timeline.step_s), steps - 1);
      timeline.tokens_per_s[step] += 1.0 / timeline.step_s;
    }
  }
  return timeline;
}

std::vector<std::pair<std::string, size_t>> count_failures(
    const std::vector<RequestRecord>& requests) {
  std::map<std::string, size_t> counts;
  for (const RequestRecord& request : requests)
    if (!request.ok) ++counts[request.error];
  std::vector<std::pair<std::string, size_t>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

Interference measure_interference(const RunRecords& records) {
  std::vector<double> gaps, steady, disturbing;
  Interference result;
  for (const RequestRecord& request : records.requests) {
    if (!request.ok) continue;
    const bool main = request.group == Group::kMain;
    (main ? steady : disturbing).push_back(request.ttft_s() * kMs);
    if (main)
      append_gaps(request, records.gaps_until_s, gaps);
    else
      ++result.long_prompts;
  }
  result.gaps_ms = Samples(std::move(gaps));
  result.steady_ttft_ms = Samples(std::move(steady));
  result.long_ttft_ms = Samples(std::move(disturbing));
  return result;
}

std::string describe_range(const LengthRange& range) {
  return range.low == range.high ? fmt::format("{}", range.low)
                                 : fmt::format("{}-{}", range.low, range.high);
}

std::string describe_arrivals(const Options& options) {
  if (!options.trace.empty()) {
    const size_t slash = options.trace.rfind('/');
    return fmt::format("trace {} at {:g}x speed",
                       options.trace.substr(slash == std::string::npos ? 0 : slash + 1),
                       options.speed);
  }
  if (!options.open_loop())
    return fmt::format("closed loop, {} at once",
                       options.concurrency > 0 ? options.concurrency : 8);
  const std::string rate = options.ramp_to > 0.0
                               ? fmt::format("{:g} to {:g}", options.ramp_from, options.ramp_to)
                               : fmt::format("{:g}", options.request_rate);
  using Kind = ArrivalPlan::Kind;
  const std::string kind = options.arrival == Kind::kConstant ? "constant"
                           : options.arrival == Kind::kGamma
                               ? fmt::format("gamma {:g}", options.burstiness)
                               : "Poisson";
  return fmt::format("open loop, {} requests/s, {}", rate, kind);
}

}  // namespace

double Interference::ratio(double percent) const {
  const double median = gaps_ms.median();
  return median > 0.0 ? gaps_ms.percentile(percent) / median : 0.0;
}

std::string describe_load(const Options& options) {
  if (options.scenario == Scenario::kMixed) {
    const std::string disturbance =
        options.mixed.long_every_s > 0.0
            ? fmt::format("a {}-token prompt every {:g} s", options.mixed.long_tokens,
                          options.mixed.long_every_s)
            : "no long prompts";
    return fmt::format("mixed: {} steady streams of {} tokens, {}", options.mixed.streams,
                       describe_range(options.output_range()), disturbance);
  }
  std::string text = describe_arrivals(options);
  if (options.trace.empty()) {
    text += fmt::format(", input {}", describe_range(options.input_range()));
    if (options.shared_prefix_len > 0)
      text += fmt::format(" + {} shared", options.shared_prefix_len);
    text += fmt::format(", output {}", describe_range(options.output_range()));
  }
  if (options.mode != Mode::kBoth)
    text += options.mode == Mode::kPrefill ? ", prefill only" : ", decode only";
  return text;
}

RunResult evaluate(const Options& options, RunRecords records) {
  RunResult result;
  result.load = describe_load(options);
  result.date = fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(std::time(nullptr)));
  result.duration_s = records.duration_s;
  result.stopped_because = records.stopped_because;
  std::stable_sort(records.requests.begin(), records.requests.end(),
                   [](const auto& a, const auto& b) { return a.start_s < b.start_s; });
  if (options.scenario == Scenario::kMixed) result.interference = measure_interference(records);

  std::vector<double> ttft, tpot, itl, e2el, queue;
  for (const RequestRecord& request : records.requests) {
    if (!request.ok) {
      ++result.failed;
      continue;
    }
    ++result.completed;
    result.input_tokens += request.input_tokens;
    result.output_tokens += request.output_tokens;
    result.counted_by_server = result.counted_by_server && request.counted_by_server;
    result.short_outputs += request.output_tokens < request.output_planned ? 1 : 0;
    result.good += is_good(request, options.goodput) ? 1 : 0;
    ttft.push_back(request.ttft_s() * kMs);
    e2el.push_back(request.e2el_s() * kMs);
    queue.push_back(request.queue_s() * kMs);
    if (request.output_tokens > 1) tpot.push_back(request.tpot_s() * kMs);
    append_gaps(request, result.duration_s, itl);
  }
  result.ttft_ms = Samples(std::move(ttft));
  result.tpot_ms = Samples(std::move(tpot));
  result.itl_ms = Samples(std::move(itl));
  result.e2el_ms = Samples(std::move(e2el));
  result.client_queue_ms = Samples(std::move(queue));
  if (result.duration_s > 0.0) {
    const auto per_s = [&](auto count) { return static_cast<double>(count) / result.duration_s; };
    result.requests_per_s = per_s(result.completed);
    result.output_tokens_per_s = per_s(result.output_tokens);
    result.total_tokens_per_s = per_s(result.input_tokens + result.output_tokens);
    if (options.goodput.any()) result.good_requests_per_s = per_s(result.good);
  }
  result.failures = count_failures(records.requests);
  result.timeline = make_timeline(records.requests, result.duration_s);
  result.requests = std::move(records.requests);
  result.peak_in_flight = peak_at_once(result.requests, false);
  result.peak_running = peak_at_once(result.requests, true);
  count_peaks(result);
  return result;
}

}  // namespace tandem::bench

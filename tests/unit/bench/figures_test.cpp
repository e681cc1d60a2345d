// Statistics against numpy's results, arrival mathematics, and the metrics of hand-made records.
#include <doctest/doctest.h>

#include <cmath>

#include "bench/arrivals.h"
#include "bench/run_result.h"
#include "bench/statistics.h"

namespace tandem::bench {
namespace {

doctest::Approx near(double value) { return doctest::Approx(value).epsilon(1e-12); }

RequestRecord request(double start_s, std::vector<double> token_times_s, int output_tokens) {
  RequestRecord record;
  record.start_s = record.due_s = start_s;
  record.token_times_s = std::move(token_times_s);
  record.input_tokens = 10;
  record.output_tokens = record.output_planned = output_tokens;
  record.counted_by_server = true;
  record.ok = true;
  return record;
}

RunRecords two_requests_and_a_failure() {
  RunRecords records;
  records.requests.push_back(request(0.5, {0.7, 0.8, 1.0}, 3));
  records.requests.push_back(request(0.0, {0.1}, 1));
  RequestRecord failed;
  failed.start_s = 0.2;
  failed.error = "HTTP 503: busy";
  records.requests.push_back(failed);
  records.duration_s = 2.0;
  records.gaps_until_s = 2.0;
  return records;
}

TEST_CASE("statistics equal numpy's") {
  const Samples samples({3.0, 1.0, 4.0, 1.5, 9.25, 2.6, 5.35, 8.979, 7.0});
  CHECK(samples.mean() == near(4.742111111111111));
  CHECK(samples.stddev() == near(2.9141204293136562));
  CHECK(samples.median() == near(4.0));
  const std::vector<std::pair<double, double>> percentiles{
      {0, 1.0},      {1, 1.04},
      {25, 2.6},     {33.3, 2.8655999999999997},
      {50, 4.0},     {90, 9.033199999999999},
      {99, 9.22832}, {99.9, 9.247832},
      {100, 9.25}};
  for (const auto& [percent, value] : percentiles)
    CHECK(samples.percentile(percent) == near(value));
  const Samples even({40, 10, 30, 20});
  CHECK(even.percentile(10) == near(13.0));
  CHECK(even.percentile(50) == near(25.0));
  CHECK(even.percentile(75) == near(32.5));
  CHECK(even.percentile(99) == near(39.7));
}

TEST_CASE("no samples and one sample have figures too") {
  CHECK(Samples().mean() == 0.0);
  CHECK(Samples().percentile(99) == 0.0);
  CHECK(Samples({7.0}).percentile(99) == 7.0);
  CHECK(Samples({7.0}).stddev() == 0.0);
}

TEST_CASE("arrivals take exactly count / rate, whatever their distribution") {
  using Kind = ArrivalPlan::Kind;
  for (Kind kind : {Kind::kPoisson, Kind::kGamma, Kind::kConstant}) {
    const auto times =
        arrival_times({.kind = kind, .rate = 5.0, .burstiness = 0.5, .count = 2000, .seed = 3});
    REQUIRE(times.size() == 2000);
    CHECK(times.back() == near(400.0));
    CHECK(std::is_sorted(times.begin(), times.end()));
  }
}

TEST_CASE("burstiness sets how uneven the intervals are") {
  const auto variation = [](ArrivalPlan::Kind kind, double burstiness) {
    const auto times = arrival_times(
        {.kind = kind, .rate = 1.0, .burstiness = burstiness, .count = 20000, .seed = 9});
    std::vector<double> intervals;
    for (size_t i = 1; i < times.size(); ++i) intervals.push_back(times[i] - times[i - 1]);
    const Samples samples(std::move(intervals));
    return samples.stddev() / samples.mean();
  };
  using Kind = ArrivalPlan::Kind;
  CHECK(variation(Kind::kConstant, 1.0) < 1e-6);
  CHECK(variation(Kind::kPoisson, 1.0) == doctest::Approx(1.0).epsilon(0.05));
  // Gamma with shape b: 1 / sqrt(b).
  CHECK(variation(Kind::kGamma, 4.0) == doctest::Approx(0.5).epsilon(0.05));
  CHECK(variation(Kind::kGamma, 0.25) == doctest::Approx(2.0).epsilon(0.1));
}

TEST_CASE("the same seed gives the same arrivals, another one others") {
  const ArrivalPlan plan{.rate = 2.0, .count = 50, .seed = 1};
  ArrivalPlan other = plan;
  other.seed = 2;
  CHECK(arrival_times(plan) == arrival_times(plan));
  CHECK(arrival_times(plan) != arrival_times(other));
}

TEST_CASE("a ramp sends faster and faster") {
  const auto times = arrival_times(
      {.kind = ArrivalPlan::Kind::kConstant, .ramp_from = 1.0, .ramp_to = 10.0, .count = 100});
  CHECK(times[1] - times[0] > 5.0 * (times[99] - times[98]));
}

TEST_CASE("metrics follow their definitions") {
  Options options;
  options.goodput.ttft_ms = 150.0;
  const RunResult result = evaluate(options, two_requests_and_a_failure());
  CHECK(result.completed == 2);
  CHECK(result.failed == 1);
  CHECK(result.input_tokens == 20);
  CHECK(result.output_tokens == 4);
  CHECK(result.requests_per_s == near(1.0));
  CHECK(result.output_tokens_per_s == near(2.0));
  CHECK(result.total_tokens_per_s == near(12.0));
  // TTFT 100 and 200 ms; TPOT only of the request with more than one token; each gap is an ITL.
  CHECK(result.ttft_ms.median() == near(150.0));
  CHECK(result.tpot_ms.size() == 1);
  CHECK(result.tpot_ms.mean() == near(150.0));
  CHECK(result.itl_ms.size() == 2);
  CHECK(result.itl_ms.min() == near(100.0));
  CHECK(result.itl_ms.max() == near(200.0));
  CHECK(result.e2el_ms.max() == near(500.0));
  CHECK(result.good == 1);
  CHECK(*result.good_requests_per_s == near(0.5));
  CHECK(result.failures == std::vector<std::pair<std::string, size_t>>{{"HTTP 503: busy", 1}});
  // vLLM's per-second counts: both requests touch second 0, where three tokens fall.
  CHECK(result.max_output_tokens_per_s == 3.0);
  CHECK(result.max_concurrent == 2);
  CHECK(result.peak_in_flight == 1);
}

TEST_CASE("goodput needs every limit, and a single token has no time per token") {
  Options options;
  options.goodput = {.ttft_ms = 1000.0, .tpot_ms = 100.0, .e2el_ms = 1000.0};
  CHECK(evaluate(options, two_requests_and_a_failure()).good == 1);
  options.goodput.tpot_ms = 150.1;
  CHECK(evaluate(options, two_requests_and_a_failure()).good == 2);
  options.goodput.e2el_ms = 400.0;
  CHECK(evaluate(options, two_requests_and_a_failure()).good == 1);
}

TEST_CASE("the timeline accounts for every token and every waiting second") {
  const RunResult result = evaluate(Options(), two_requests_and_a_failure());
  const Timeline& timeline = result.timeline;
  double tokens = 0.0, waiting = 0.0, running = 0.0;
  for (size_t i = 0; i < timeline.waiting.size(); ++i) {
    tokens += timeline.tokens_per_s[i] * timeline.step_s;
    waiting += timeline.waiting[i] * timeline.step_s;
    running += timeline.running[i] * timeline.step_s;
  }
  CHECK(tokens == doctest::Approx(4.0));
  CHECK(waiting == doctest::Approx(0.1 + 0.2));
  CHECK(running == doctest::Approx(0.3));
}

TEST_CASE("interference looks at steady streams only, and only while the load was on") {
  Options options;
  options.scenario = Scenario::kMixed;
  RunRecords records;
  records.duration_s = 10.0;
  records.gaps_until_s = 1.5;
  records.requests.push_back(request(0.0, {0.1, 0.2, 0.3, 0.7, 0.8, 5.0}, 6));
  records.requests.push_back(request(0.0, {0.4, 1.4}, 2));
  records.requests.back().group = Group::kLong;
  const RunResult result = evaluate(options, std::move(records));
  REQUIRE(result.interference.has_value());
  const Interference& interference = *result.interference;
  CHECK(interference.gaps_ms.size() == 4);
  CHECK(interference.gaps_ms.median() == near(100.0));
  CHECK(interference.gaps_ms.max() == near(400.0));
  CHECK(interference.ratio(100.0) == near(4.0));
  CHECK(interference.long_prompts == 1);
  CHECK(interference.long_ttft_ms.median() == near(400.0));
}

TEST_CASE("a run without any success has figures") {
  RunRecords records;
  records.requests.resize(3);
  for (RequestRecord& record : records.requests) record.error = "x";
  const RunResult result = evaluate(Options(), std::move(records));
  CHECK(result.failed == 3);
  CHECK(result.ttft_ms.empty());
  CHECK(result.requests_per_s == 0.0);
}

}  // namespace
}  // namespace tandem::bench

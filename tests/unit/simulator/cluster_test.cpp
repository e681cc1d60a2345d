// Whole simulated runs: every request ends once, nothing depends on anything but the input, and
// changes of role, full memories and lone tokens lose nothing.
#include "simulator/cluster.h"

#include <doctest/doctest.h>

#include <cmath>

#include "common/random.h"
#include "simulator/goodput.h"
#include "simulator/report.h"
#include "simulator/settings.h"

using namespace tandem;
using namespace tandem::simulator;

namespace {

std::vector<SimRequest> random_load(uint64_t seed, int count, double rate) {
  std::vector<SimRequest> out;
  double at_s = 0;
  for (int i = 0; i < count; ++i) {
    const auto n = static_cast<uint64_t>(i) * 3;
    at_s += -std::log(1 - counter_uniform(seed, n)) / rate;
    SimRequest request{at_s,
                       1 + static_cast<int>(counter_random(seed, n + 1) % 4000),
                       1 + static_cast<int>(counter_random(seed, n + 2) % 200),
                       {}};
    for (int b = 0; b < request.prompt_tokens / kTraceBlockTokens; ++b)
      request.blocks.push_back(static_cast<uint64_t>(i % 5) * 100 + static_cast<uint64_t>(b));
    out.push_back(std::move(request));
  }
  return out;
}

ClusterOptions cluster(const std::string& split, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--request-rate=1", "--split=" + split});
  const auto settings = parse_settings(more);
  REQUIRE_MESSAGE(settings.ok(), settings.status().message());
  auto options = make_cluster(*settings);
  REQUIRE_MESSAGE(options.ok(), options.status().message());
  return std::move(*options);
}

void check_all_served(const ClusterResult& result, const std::vector<SimRequest>& requests) {
  REQUIRE(result.records.requests.size() == requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const bench::RequestRecord& record = result.records.requests[i];
    CAPTURE(i);
    CHECK_MESSAGE(record.ok, record.error);
    CHECK(record.output_tokens == requests[i].output_tokens);
    CHECK(record.token_times_s.size() == static_cast<size_t>(requests[i].output_tokens));
    CHECK(record.token_times_s.front() > requests[i].at_s);
  }
}

}  // namespace

TEST_CASE("every request gets all its tokens, whatever the split") {
  const uint64_t seed = seed_from_environment();
  MESSAGE("seed " << seed);
  const auto requests = random_load(seed, 400, 20);
  for (const char* split : {"1:1", "3:5", "auto", "auto:1:7", "coupled", "coupled:512"}) {
    CAPTURE(split);
    ClusterOptions options = cluster(split);
    options.token_times = true;
    check_all_served(simulate(options, requests), requests);
  }
}

TEST_CASE("the same input gives the same result, to the last bit") {
  const auto requests = random_load(11, 300, 30);
  const auto settings = parse_settings({"--request-rate=1", "--split=auto:1:7"});
  REQUIRE(settings.ok());
  ClusterOptions options = cluster("auto:1:7");
  options.token_times = options.decisions = true;
  const auto once = [&] {
    ClusterResult result = simulate(options, requests);
    std::string text;
    for (const auto& decision : result.decisions) text += scheduler::decision_line(decision);
    return text + make_report(*settings, options, std::move(result)).json;
  };
  CHECK(once() == once());
}

TEST_CASE("an idle cluster answers in the time of its cost formulas") {
  ClusterOptions options = cluster("1:1", {"--policy=static_split"});
  options.token_times = true;
  const std::vector<SimRequest> requests{{0.5, 2000, 11, {}}};
  const ClusterResult result = simulate(options, requests);
  const bench::RequestRecord& record = result.records.requests.at(0);
  REQUIRE(record.ok);
  const scheduler::CostParameters& c = options.workers[0].costs;
  CHECK(record.ttft_s() ==
        doctest::Approx(c.prefill_ms(0, 2000) / 1e3 + 2 * options.link_delay_s).epsilon(1e-6));
  // The first gap holds the last layer's journey, the others a step each.
  const double layer_s = 2000.0 * static_cast<double>(c.kv_bytes_per_token) / c.layers /
                         options.network_bytes_per_second;
  const double gap_s = record.token_times_s[1] - record.token_times_s[0];
  CHECK(gap_s >= c.decode_ms(1, 2001) / 1e3);
  CHECK(gap_s <= c.decode_ms(1, 2001) / 1e3 + layer_s + 2 * options.link_delay_s);
}

TEST_CASE("roles that change under load lose no request and no token") {
  auto requests = random_load(5, 1500, 14);
  for (SimRequest& request : requests) request.blocks.clear();  // All prompts are new: work to do
  ClusterOptions options =
      cluster("auto:1:3", {"--ttft-ms=500", "--tpot-ms=20", "--profile=qwen2.5-14b-h100"});
  options.token_times = true;
  options.config.worker.role_drain = Milliseconds(200);  // Nothing has time to end by itself
  const ClusterResult result = simulate(options, requests);
  CHECK(!result.role_changes.empty());
  check_all_served(result, requests);
}

TEST_CASE("a full decode memory delays answers and drops none") {
  ClusterOptions options = cluster("1:1");
  for (WorkerSpec& worker : options.workers) worker.costs.kv_tokens_capacity = 20'000;
  options.max_tokens = 16;  // Clients that promise less than they take
  options.token_times = true;
  std::vector<SimRequest> requests;
  for (int i = 0; i < 40; ++i) requests.push_back({i * 0.02, 1000, 800, {}});
  const ClusterResult result = simulate(options, requests);
  check_all_served(result, requests);
}

TEST_CASE("nothing is impossible twice: a request that no worker can hold is refused") {
  ClusterOptions options = cluster("1:1");
  for (WorkerSpec& worker : options.workers) worker.costs.kv_tokens_capacity = 5'000;
  options.token_times = true;
  const std::vector<SimRequest> requests{{0, 9000, 10, {}}, {0.1, 100, 5, {}}};
  const ClusterResult result = simulate(options, requests);
  CHECK_FALSE(result.records.requests[0].ok);
  CHECK(result.records.requests[1].ok);
}

TEST_CASE("goodput is a rate that holds while a slightly higher one does not") {
  std::vector<bench::TraceRow> rows;
  for (const SimRequest& request : random_load(3, 600, 1))
    rows.push_back({request.at_s, request.prompt_tokens, request.output_tokens, {}});
  const ClusterOptions options = cluster("1:1", {"--ttft-ms=500", "--tpot-ms=30"});
  const Goodput found = find_goodput(options, rows, {.start_scale = 5});
  CHECK(found.attainment >= 0.9);
  CHECK(found.requests_per_s_per_worker == doctest::Approx(found.requests_per_s / 2));
  const auto faster = cut_trace(rows, {.scale = found.scale * 1.1});
  CHECK(simulate(options, faster).attainment() < 0.9);
}

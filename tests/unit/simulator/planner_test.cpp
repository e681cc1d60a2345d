// The planner on tiny traces: the answer, the runners-up, what cannot be, and a configuration that
// is one.
#include "simulator/planner.h"

#include <doctest/doctest.h>

using namespace tandem;
using namespace tandem::simulator;

namespace {

std::vector<bench::TraceRow> steady(int count, double rate, int prompt, int output) {
  std::vector<bench::TraceRow> rows;
  for (int i = 0; i < count; ++i) rows.push_back({i / rate, prompt, output, {}});
  return rows;
}

Settings settings(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--trace=tiny.csv", "--profile=qwen2.5-14b-h100"});
  auto parsed = parse_settings(more);
  REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
  return std::move(*parsed);
}

}  // namespace

TEST_CASE("a small load needs one worker") {
  const auto plan = make_plan(settings(), steady(20, 0.5, 500, 20), 8);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  CHECK(plan->best.workers() == 1);
  CHECK(plan->best.coupled == 1);
  CHECK(plan->best.why.empty());
  CHECK(plan->context == 520);
}

TEST_CASE("the answer holds, and one worker less of the same kind does not") {
  const Settings asked = settings({"--ttft-ms=1000", "--tpot-ms=30"});
  const auto plan = make_plan(asked, steady(400, 20, 2000, 100), 32);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  CHECK(plan->best.holds);
  CHECK(plan->best.attainment >= 0.9);
  CHECK(plan->best.workers() > 1);
  CHECK_FALSE(plan->others.empty());
  for (const PlanCandidate& other : plan->others) {
    CAPTURE(other.text());
    CHECK_FALSE(other.why.empty());
    if (other.workers() < plan->best.workers()) CHECK_FALSE(other.holds);
  }
}

TEST_CASE("an impossible limit is named, with how much is missing") {
  const auto rows = steady(10, 1, 8000, 50);
  const auto ttft = make_plan(settings({"--ttft-ms=100"}), rows, 8);
  REQUIRE_FALSE(ttft.ok());
  // 5 + 39.3 us x 8000 + 9.94e-4 us x 8000^2 = 383.0 ms
  CHECK(ttft.status().message().find("TTFT 100 ms") != std::string::npos);
  CHECK(ttft.status().message().find("383.0 ms, 283.0 ms (283%) more") != std::string::npos);
  const auto tpot = make_plan(settings({"--tpot-ms=10"}), rows, 8);
  REQUIRE_FALSE(tpot.ok());
  CHECK(tpot.status().message().find("TPOT 10 ms") != std::string::npos);
  const auto large = make_plan(settings(), steady(3, 1, 300'000, 5), 8);
  REQUIRE_FALSE(large.ok());
  CHECK(large.status().message().find("206000") != std::string::npos);
}

TEST_CASE("a load beyond the allowed number of workers is refused") {
  const auto plan =
      make_plan(settings({"--ttft-ms=500", "--tpot-ms=30"}), steady(400, 100, 4000, 50), 2);
  REQUIRE_FALSE(plan.ok());
  CHECK(plan.status().message().find("2 workers do not meet") != std::string::npos);
}

TEST_CASE("the configuration that comes with a plan is valid and says what the plan says") {
  const Settings asked = settings({"--ttft-ms=1000", "--tpot-ms=20"});
  Plan plan;
  plan.best = {.prefill = 3, .decode = 2};
  const auto profile = scheduler::find_profile("qwen2.5-14b-h100");
  REQUIRE(profile.ok());
  plan.profile = *profile;
  plan.context = 9000;
  const auto config = parse_config(plan_config(asked, plan), "plan");
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  CHECK(config->prefill.replicas == 3);
  CHECK(config->decode.replicas == 2);
  CHECK(config->slo.tpot == Milliseconds(20));
  CHECK(config->sim.decode_base_ms == doctest::Approx(13.6));
  CHECK(config->model.context == 9000);
}

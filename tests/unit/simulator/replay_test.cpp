// The decision log survives its journey through a file, and judging it finds the better choice.
#include "simulator/replay.h"

#include <doctest/doctest.h>

#include <sstream>

using namespace tandem;
using namespace tandem::simulator;

namespace {

scheduler::WorkerState worker(const std::string& name, Role role, int64_t backlog) {
  scheduler::WorkerState state;
  state.name = name;
  state.role = role;
  state.slots = state.slots_free = 16;
  state.kv_tokens_capacity = 100'000;
  state.prefill_backlog_tokens = backlog;
  state.prefill_us_per_token = 20;
  state.decode_step_ms = 10;
  return state;
}

scheduler::DecisionRecord record() {
  scheduler::DecisionRecord r;
  r.request = "req-1";
  r.prompt_tokens = 1000;
  r.max_tokens = 100;
  r.ttft_slo_ms = 1000;
  r.tpot_slo_ms = 50;
  r.path = "remote";
  r.prefill = "p0";
  r.decode = "d0";
  r.reason = "backlog";
  r.predicted_ttft_ms = 110;
  r.predicted_ttft_bound_ms = 150;
  r.outcome = "ok";
  r.ttft_ms = 100;
  r.candidates = {worker("p0", Role::kPrefill, 4000), worker("d0", Role::kDecode, 0),
                  worker("p1", Role::kPrefill, 500)};
  r.candidates[1].slots_free = 8;
  return r;
}

ClusterOptions options() {
  auto settings = parse_settings({"--request-rate=1", "--split=1:1"});
  REQUIRE(settings.ok());
  auto made = make_cluster(*settings);
  REQUIRE(made.ok());
  return std::move(*made);
}

}  // namespace

TEST_CASE("a decision survives being written and read") {
  std::istringstream file(scheduler::decision_line(record()) + "\n" +
                          scheduler::decision_line(record()));
  const auto log = scheduler::read_decisions(file, "log");
  REQUIRE_MESSAGE(log.ok(), log.status().message());
  REQUIRE(log->size() == 2);
  CHECK(scheduler::decision_line(log->at(1)) == scheduler::decision_line(record()));
}

TEST_CASE("a broken line is named, a last one that was cut short is left out") {
  const std::string good = scheduler::decision_line(record());
  std::istringstream cut(good + good.substr(0, good.size() / 2));
  const auto log = scheduler::read_decisions(cut, "log");
  REQUIRE(log.ok());
  CHECK(log->size() == 1);
  for (const auto& [from, to, message] :
       {std::tuple{"\"prompt_tokens\":1000", "\"prompt_tokens\":0", "prompt_tokens is too small"},
        {"\"path\"", "\"way\"", "no field path"},
        {"\"ttft_ms\":100.0", "\"ttft_ms\":\"fast\"", "ttft_ms is not a number"},
        {"\"role\":\"decode\"", "\"role\":\"cook\"", "unknown role \"cook\""}}) {
    std::string bad = good;
    const size_t at = bad.find(from);
    REQUIRE(at != std::string::npos);
    bad.replace(at, std::string(from).size(), to);
    std::istringstream file(bad + good);
    const auto failed = scheduler::read_decisions(file, "log");
    REQUIRE_FALSE(failed.ok());
    CHECK(failed.status().message().find("log:1: ") == 0);
    CHECK_MESSAGE(failed.status().message().find(message) != std::string::npos,
                  failed.status().message());
  }
  std::istringstream empty("\n");
  CHECK_FALSE(scheduler::read_decisions(empty, "log").ok());
}

TEST_CASE("regret is what the better prefill worker would have saved") {
  const Judgement judgement = judge({record()}, options());
  REQUIRE(judgement.decisions.size() == 1);
  const JudgedDecision& judged = judgement.decisions[0];
  CHECK(judged.chosen_ms == doctest::Approx(100));  // 20 us x (4000 + 1000)
  CHECK(judged.best_ms == doctest::Approx(30));     // p1: 20 us x (500 + 1000)
  CHECK(judged.best == "remote p1");
  CHECK(judged.regret_ms == doctest::Approx(70));
  CHECK(judgement.error.median() == doctest::Approx(10));
  CHECK(judgement.within_bound == 1);
}

TEST_CASE("a simulated run's decisions can be replayed") {
  ClusterOptions cluster = options();
  cluster.decisions = true;
  std::vector<SimRequest> requests;
  for (int i = 0; i < 30; ++i) requests.push_back({i * 0.1, 500 + 100 * i, 20, {}});
  const ClusterResult result = simulate(cluster, requests);
  REQUIRE(result.decisions.size() == 30);
  for (const auto& decision : result.decisions) CHECK(decision.outcome == "ok");
  const Judgement judgement = judge(result.decisions, cluster);
  CHECK(judgement.decisions.size() == 30);
  CHECK(judgement.refused == 0);
}

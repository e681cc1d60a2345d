// Proves the pacing rule: what is planned fits the budget to the token, slack buys larger chunks,
// and prompts are never starved.
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "scheduler/profiles.h"
#include "scheduler/step_planner.h"

namespace tandem::scheduler {
namespace {

// Made at first use: other files' statics are there by then.
const CostParameters& profile_costs() {
  static const CostParameters costs = find_profile("qwen2.5-14b-h100")->costs;
  return costs;
}

TEST_CASE("the planned tokens fill the budget and one more would exceed it") {
  for (const int first : {0, 3000, 60000}) {
    for (const double batch : {0.0, 1.0, 40.0, 500.0}) {
      for (const double budget : {20.0, 45.0, 400.0}) {
        CAPTURE(first);
        CAPTURE(batch);
        CAPTURE(budget);
        const double context = batch * 1500;
        const int n = tokens_within(profile_costs(), budget, first, batch, context);
        if (n > 0) CHECK(profile_costs().mixed_ms(first, n, batch, context) <= budget + 1e-6);
        CHECK(profile_costs().mixed_ms(first, n + 1, batch, context) > budget);
      }
    }
  }
}

TEST_CASE("without slack a step takes nine tenths of the time per token") {
  const StepState state{
      .batch = 20, .context_tokens = 30000, .tpot_ms = 50, .prompt_pending = 9999};
  const int n = plan_prompt_tokens(state, {}, profile_costs());
  // 45 ms less 0.8 of sequences, 2.34 of context, 5.03 of chunk overhead, 0.80 of attention, over
  // 39.3 us, less the 20.
  CHECK(n == 896);
  CHECK(profile_costs().mixed_ms(0, n, 20, 30000) <= 45);
}

TEST_CASE("saved time buys a larger chunk, and the poorest tenth decides") {
  std::vector<double> slack(20, 100.0);
  StepState state{.batch = 20,
                  .context_tokens = 30000,
                  .slack_ms = slack,
                  .tpot_ms = 50,
                  .prompt_pending = 99999};
  const int rich = plan_prompt_tokens(state, {}, profile_costs());
  CHECK(profile_costs().mixed_ms(0, rich, 20, 30000) == doctest::Approx(145).epsilon(0.01));
  slack[3] = slack[4] = slack[5] = 0;
  CHECK(plan_prompt_tokens(state, {}, profile_costs()) < rich / 2);
  slack[3] = std::numeric_limits<double>::quiet_NaN();
  CHECK(plan_prompt_tokens(state, {}, profile_costs()) >= 0);
}

TEST_CASE("a fixed chunk counts the decoding tokens in it") {
  const PacingOptions fixed{.chunk_tokens = 512};
  CHECK(plan_prompt_tokens({.batch = 100, .prompt_pending = 5000}, fixed, profile_costs()) == 412);
  CHECK(plan_prompt_tokens({.batch = 600, .prompt_pending = 5000}, fixed, profile_costs()) == 1);
  CHECK(plan_prompt_tokens({.batch = 0, .prompt_pending = 30}, fixed, profile_costs()) == 30);
}

TEST_CASE("an impossible time per token delays prompts but never starves them") {
  StepState state{.batch = 20, .context_tokens = 30000, .tpot_ms = 2, .prompt_pending = 9999};
  CHECK(plan_prompt_tokens(state, {}, profile_costs()) == 0);
  state.prompt_waited_ms = 1000;
  CHECK(plan_prompt_tokens(state, {}, profile_costs()) == 64);
  state.prompt_pending = 10;
  CHECK(plan_prompt_tokens(state, {}, profile_costs()) == 10);
  state.prompt_pending = 0;
  CHECK(plan_prompt_tokens(state, {}, profile_costs()) == 0);
}

TEST_CASE("an idle worker takes all that waits") {
  CHECK(plan_prompt_tokens({.prompt_pending = 5000}, {}, profile_costs()) == 5000);
  CHECK(plan_prompt_tokens({.prompt_pending = 50000}, {}, profile_costs()) == 8192);
}

TEST_CASE("slack is what the tokens so far could have taken") {
  CHECK(tpot_slack_ms(11, 50, 400) == 100);
  CHECK(tpot_slack_ms(1, 50, 30) == -30);
}

}  // namespace
}  // namespace tandem::scheduler

// How many prompt tokens may run in a step beside decoding sequences, so that their time per token
// holds. Coupled and partitioned workers ask live, the simulator asks the same function; what a
// caller with a fixed chunk grid does is start the next chunk when it fits. Pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "scheduler/cost_model.h"

namespace tandem::scheduler {

struct PacingOptions {
  int chunk_tokens = 0;  // Tokens of a step, decoding ones included; 0: derived from the SLO
  int chunk_tokens_max = 8192;
  // Prompts are never starved: after `starvation_ms` without progress this many tokens run anyway.
  int chunk_tokens_min = 64;
  double starvation_ms = 1000;
  double margin = 0.9;  // tau: the part of the TPOT that a step may take without slack
  // The bank: a step may also take what the sequence at this quantile of slack (0: the poorest)
  // has saved, times `bank_share`.
  double bank_quantile = 0.1;
  double bank_share = 1.0;
};

struct StepState {
  int batch = 0;
  int64_t context_tokens = 0;        // Sum over the batch
  std::span<const double> slack_ms;  // Of each decoding sequence: tpot_slack_ms(); may be empty
  double tpot_ms = 80;
  int prompt_first = 0;         // Where the next prompt chunk begins
  int prompt_pending = 0;       // Prompt tokens that wait
  double prompt_waited_ms = 0;  // Since a prompt token last ran here
};

// What a sequence has saved: its tokens so far could have taken (tokens - 1) * SLO since the first.
constexpr double tpot_slack_ms(int tokens, double tpot_slo_ms, double since_first_token_ms) {
  return (tokens - 1) * tpot_slo_ms - since_first_token_ms;
}

// How long the step may take.
double step_budget_ms(const StepState& state, const PacingOptions& options);
// The most prompt tokens, from `first` on, with which a step of `batch` takes `budget_ms`; 0: none.
int tokens_within(const CostParameters& costs, double budget_ms, int first, double batch,
                  double context);
// Prompt tokens for this step, 0 to state.prompt_pending.
int plan_prompt_tokens(const StepState& state, const PacingOptions& options,
                       const CostParameters& costs);

}  // namespace tandem::scheduler

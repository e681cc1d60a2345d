#include "scheduler/step_planner.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tandem::scheduler {
namespace {

// The largest n >= 0 with square n^2 + linear n + constant <= 0; below 0: none.
double largest_root(double square, double linear, double constant) {
  if (constant > 0) return -1;
  if (square <= 0) return linear > 0 ? -constant / linear : 1e9;
  const double half = linear / (2 * square);
  return std::sqrt(half * half - constant / square) - half;
}

double quantile(std::span<const double> values, double q) {
  std::vector<double> copy;
  for (const double value : values)
    if (std::isfinite(value)) copy.push_back(value);
  if (copy.empty()) return 0;
  const double at = std::clamp(q, 0.0, 1.0) * static_cast<double>(copy.size() - 1);
  const auto middle = copy.begin() + static_cast<std::ptrdiff_t>(at);
  std::nth_element(copy.begin(), middle, copy.end());
  return *middle;
}

}  // namespace

double step_budget_ms(const StepState& state, const PacingOptions& options) {
  const double plain = options.margin * state.tpot_ms;
  if (state.slack_ms.empty()) return plain;
  const double saved = quantile(state.slack_ms, options.bank_quantile);
  return std::max(plain, plain + options.bank_share * saved);
}

int tokens_within(const CostParameters& costs, double budget_ms, int first, double batch,
                  double context) {
  const double p = first;
  const double a1 = costs.prefill_per_token_us / 1e3, a2 = costs.prefill_per_token2_us / 1e3;
  double n = 0;
  if (batch <= 0) {
    n = largest_root(a2, a1 + 2 * a2 * p, costs.prefill_base_ms - budget_ms);
  } else {
    const DecodeCosts& d = costs.decode_costs(batch);
    const double rest = d.per_sequence_ms * batch + d.per_context_us * context / 1e3 +
                        a1 * costs.chunk_overhead_tokens - budget_ms;
    // Whichever bounds the step, arithmetic or the reading of the weights, both must fit.
    n = std::min(largest_root(a2, a1 + 2 * a2 * p, a1 * batch + rest),
                 largest_root(a2, 2 * a2 * p, d.base_ms + rest));
  }
  return static_cast<int>(std::clamp(n, 0.0, 1e9));
}

int plan_prompt_tokens(const StepState& state, const PacingOptions& options,
                       const CostParameters& costs) {
  const int most = std::min(state.prompt_pending, options.chunk_tokens_max);
  if (most <= 0) return 0;
  if (options.chunk_tokens > 0)
    return std::clamp(options.chunk_tokens - state.batch, 1, std::max(1, most));
  if (state.batch <= 0) return most;
  const int fits = tokens_within(costs, step_budget_ms(state, options), state.prompt_first,
                                 state.batch, static_cast<double>(state.context_tokens));
  const bool starved = !(state.prompt_waited_ms < options.starvation_ms);
  const int least = starved ? std::min(most, options.chunk_tokens_min) : 0;
  return std::clamp(fits, least, most);
}

}  // namespace tandem::scheduler

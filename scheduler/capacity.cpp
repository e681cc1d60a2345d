#include "scheduler/capacity.h"

#include <algorithm>
#include <cmath>

namespace tandem::scheduler {
namespace {

// Parts of the ideal that are reached: batches form, hand-overs and steps end unevenly.
constexpr double kPrefillYield = 0.90;
constexpr double kDecodeYield = 0.92;
constexpr double kCoupledYield = 0.92;
// The part of the time per token that a decode step is planned with.
constexpr double kStepTarget = 0.9;
// A mixed step may be that much of it: what one step loses another saves.
constexpr double kMixedTarget = 0.97;
// Utilisation of prefill workers at least, however tight the time to first token is.
constexpr double kUtilisationMin = 0.3;
constexpr double kUtilisationMax = 0.97;

// Probability that an arrival waits with `n` servers at utilisation `rho` (Erlang C), n rounded.
double erlang_c(double workers, double rho) {
  const int n = static_cast<int>(std::clamp(std::lround(workers), 1l, 64l));  // More: bounded by it
  const double load = rho * n;
  double blocked = 1;
  for (int k = 1; k <= n; ++k) blocked = load * blocked / (k + load * blocked);
  return blocked / (1 - rho * (1 - blocked));
}

}  // namespace

DecodePoint decode_point(const CostParameters& costs, const LoadShape& shape,
                         const Targets& targets, double slots) {
  const double context = shape.prompt_tokens + shape.output_tokens / 2;
  const double whole = std::max(1.0, shape.prompt_tokens + shape.output_tokens);
  double most = std::max(1.0, static_cast<double>(costs.kv_tokens_capacity) / whole);
  if (slots > 0) most = std::min(most, slots);
  const double limit = kStepTarget * targets.tpot_ms;
  DecodePoint point;
  point.possible = costs.decode_ms(1, context) <= limit;
  double low = 1, high = std::floor(most);
  while (high - low > 0.5) {
    const double middle = std::ceil((low + high) / 2);
    (costs.decode_ms(middle, middle * context) <= limit ? low : high) =
        costs.decode_ms(middle, middle * context) <= limit ? middle : middle - 1;
  }
  point.batch = low;
  point.step_ms = costs.decode_ms(low, low * context);
  point.per_second =
      kDecodeYield * low * 1e3 / (std::max(1.0, shape.output_tokens) * point.step_ms);
  return point;
}

double prefill_per_second(const LoadShape& shape, const Targets& targets, double workers) {
  if (workers <= 0 || shape.prefill_ms <= 0) return 0;
  const double rate = 1e3 / shape.prefill_ms;  // Of one worker, busy all the time
  const double room = std::max(0.0, targets.ttft_ms - shape.prefill_ms_p90) / 1e3;
  const double spread = std::max(0.1, shape.arrival_cv2 + shape.prefill_cv2);
  // P(wait > room) by Allen-Cunneen's exponential tail.
  const auto misses = [&](double rho) {
    return erlang_c(workers, rho) * std::exp(-2 * workers * rate * (1 - rho) * room / spread);
  };
  double low = kUtilisationMin, high = kUtilisationMax;
  for (int i = 0; i < 20; ++i) {
    const double middle = (low + high) / 2;
    (misses(middle) <= 1 - targets.attainment ? low : high) = middle;
  }
  return std::min(low, kPrefillYield) * workers * rate;
}

// Per second x requests: a step of T seconds carries n = x u T prompt tokens and B = x o T... by
// Little's law, so that every term but the weights' reading is linear in x.
double coupled_per_second(const CostParameters& costs, const LoadShape& shape,
                          const Targets& targets, double slots) {
  const double step_ms = kMixedTarget * targets.tpot_ms;
  const double context = shape.prompt_tokens + shape.output_tokens / 2;
  const double a1 = costs.prefill_per_token_us / 1e3;
  // What one request costs over its life, milliseconds.
  const double quadratic = costs.prefill_per_token2_us / 1e3 * shape.uncached_tokens *
                           (2 * shape.prompt_tokens - shape.uncached_tokens);
  const double arithmetic = a1 * (shape.uncached_tokens + shape.output_tokens);
  const double decode = shape.output_tokens * (costs.decode.per_sequence_ms +
                                               costs.decode.per_context_us / 1e3 * context);
  const double left = 1 - a1 * costs.chunk_overhead_tokens / step_ms;
  const double by_arithmetic = left * 1e3 / (arithmetic + decode + quadratic);
  const double by_weights =
      (left - costs.decode.base_ms / step_ms) * 1e3 / std::max(1e-9, decode + quadratic);
  const double whole = std::max(1.0, shape.prompt_tokens + shape.output_tokens);
  double batch = static_cast<double>(costs.kv_tokens_capacity) / whole;
  if (slots > 0) batch = std::min(batch, slots);
  const double by_memory = batch * 1e3 / (std::max(1.0, shape.output_tokens) * step_ms);
  const double most = std::min({by_arithmetic, by_weights, by_memory});
  if (most <= 0) return 0;
  // A prompt spreads over steps, of which it must not need more than the TTFT has.
  const double first_ms = shape.prefill_ms_p90 / std::max(0.05, 1 - costs.decode.base_ms / step_ms);
  const double in_time = std::clamp(targets.ttft_ms / std::max(1.0, 2 * first_ms), 0.2, 1.0);
  return kCoupledYield * most * in_time;
}

}  // namespace tandem::scheduler

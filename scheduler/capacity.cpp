#include "scheduler/capacity.h"

#include <algorithm>
#include <cmath>

namespace tandem::scheduler {
namespace {

// Parts of the ideal that are reached: batches form, hand-overs and steps end unevenly.
constexpr double kPrefillYield = 0.90;
constexpr double kDecodeYield = 0.95;
// What one step takes beyond the target others must have saved before, the less the more of a step
// is the weights' reading.
constexpr double kCoupledYield = 0.95;
constexpr double kCoupledYieldLost = 0.20;  // Times w / T
// The part of the time per token that a decode step is planned with.
constexpr double kStepTarget = 0.95;
// A mixed step may be that much of it: what one step loses another saves.
constexpr double kMixedTarget = 0.97;
// Parts that a prompt is taken to be cut into, tried in geometric order.
constexpr double kPartsMax = 256;
constexpr double kPartsStride = 1.25;
// Utilisation of prefill workers at least, however tight the time to first token is.
constexpr double kUtilisationMin = 0.1;
constexpr double kUtilisationMax = 0.97;

// Probability that an arrival waits with `n` servers at utilisation `rho` (Erlang C), n rounded.
double erlang_c(double workers, double rho) {
  const int n = static_cast<int>(std::clamp(std::lround(workers), 1l, 64l));  // More: bounded by it
  const double load = rho * n;
  double blocked = 1;
  for (int k = 1; k <= n; ++k) blocked = load * blocked / (k + load * blocked);
  return blocked / (1 - rho * (1 - blocked));
}

// The part of their time that `workers` may be busy with requests of `service_ms` each, so that the
// time to first token holds where it takes `first_ms` without a wait: P(wait > room) by
// Allen-Cunneen's exponential tail.
double utilisation(const LoadShape& shape, const Targets& targets, double workers,
                   double service_ms, double first_ms) {
  const double rate = 1e3 / service_ms;  // Of one worker, busy all the time
  const double room = std::max(0.0, targets.ttft_ms - first_ms) / 1e3;
  const double spread = std::max(0.1, shape.arrival_cv2 + shape.prefill_cv2);
  const auto misses = [&](double rho) {
    return erlang_c(workers, rho) * std::exp(-2 * workers * rate * (1 - rho) * room / spread);
  };
  double low = kUtilisationMin, high = kUtilisationMax;
  for (int i = 0; i < 20; ++i) {
    const double middle = (low + high) / 2;
    (misses(middle) <= 1 - targets.attainment ? low : high) = middle;
  }
  return low;
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
  const double busy = utilisation(shape, targets, workers, shape.prefill_ms, shape.prefill_ms_p90);
  return std::min(busy, kPrefillYield) * workers * 1e3 / shape.prefill_ms;
}

// With x requests per second and steps of T on average there are N = 1/T steps per second, and each
// reads the weights: N w. What a request adds: its decoding, its attention, and m steps with a part
// of its prompt, each of which costs what its arithmetic takes beyond w, and a half-filled tile.
// Fewer parts waste less on tiles, more of them hide more behind the weights' reading; there cannot
// be more than steps. The best m counts.
double coupled_per_second(const CostParameters& costs, const LoadShape& shape,
                          const Targets& targets, double slots, double workers) {
  if (workers <= 0) return 0;
  const double step_ms = kMixedTarget * targets.tpot_ms;
  const double context = shape.prompt_tokens + shape.output_tokens / 2;
  const double a1 = costs.prefill_per_token_us / 1e3;
  const double w = costs.decode.base_ms;
  const double output = std::max(1.0, shape.output_tokens);
  const double quadratic = costs.prefill_per_token2_us / 1e3 * shape.uncached_tokens *
                           (2 * shape.prompt_tokens - shape.uncached_tokens);
  const double decode =
      output * (costs.decode.per_sequence_ms + costs.decode.per_context_us / 1e3 * context);
  const double left_ms = (1 - w / step_ms) * 1e3;  // Of a second
  const double steps = 1e3 / step_ms;
  if (left_ms <= 0) return 0;
  double most = 0;
  for (double parts = 1; parts <= kPartsMax; parts *= kPartsStride) {
    double x = most;  // The batch, and with it its arithmetic, follows from x: two rounds suffice
    for (int round = 0; round < 3; ++round) {
      const double batch = x * output * step_ms / 1e3;
      const double beyond = std::max(0.0, a1 * (shape.uncached_tokens / parts + batch) - w);
      x = left_ms / (decode + quadratic + parts * (beyond + a1 * costs.chunk_overhead_tokens));
    }
    most = std::max(most, std::min(x, steps / parts));
  }
  const double whole = std::max(1.0, shape.prompt_tokens + shape.output_tokens);
  double batch = static_cast<double>(costs.kv_tokens_capacity) / whole;
  if (slots > 0) batch = std::min(batch, slots);
  most = std::min(most, batch * 1e3 / (output * step_ms));
  if (most <= 0) return 0;
  // A prompt shares its steps with the weights' reading.
  const double first_ms = shape.prefill_ms_p90 / std::max(0.05, 1 - w / step_ms);
  const double busy = utilisation(shape, targets, workers, 1e3 / most, first_ms);
  return std::min(busy, kCoupledYield - kCoupledYieldLost * w / step_ms) * workers * most;
}

}  // namespace tandem::scheduler

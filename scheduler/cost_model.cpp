#include "scheduler/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "scheduler/scheduler.h"

namespace tandem::scheduler {
namespace {

constexpr double kForgetting = 0.99;
constexpr double kTrustedBand = 0.5;  // Learnt values stay within prior * (1 +/- this)
constexpr double kSampleMsMax = 3'600'000;
// Features are scaled to be of one size: thousands of tokens, millions of squares, 10,000 of
// context.
constexpr double kTokenScale = 1e3;
constexpr double kSquareScale = 1e6;
constexpr double kContextScale = 1e4;
// What validate() allows; the upper bounds only catch wrong units.
constexpr double kMsMax = 1e6;
constexpr double kUsMax = 1e6;

using Vector = LeastSquares3::Vector;

Vector prefill_theta(const CostParameters& p) {
  return {p.prefill_base_ms, p.prefill_per_token_us * kTokenScale / 1e3,
          p.prefill_per_token2_us * kSquareScale / 1e3};
}
Vector decode_theta(const CostParameters& p) {
  return {p.decode.base_ms, p.decode.per_sequence_ms,
          p.decode.per_context_us * kContextScale / 1e3};
}
// A coefficient may be off by its own size; one without a prior by what `scale` explains.
Vector spread_of(const Vector& theta, bool trusted) {
  const double scale = theta[0] + theta[1] + theta[2];
  Vector spread;
  for (size_t i = 0; i < 3; ++i) {
    const double size = trusted ? theta[i] : std::max(theta[i], scale);
    spread[i] = std::max(size * size, 1e-9);
  }
  return spread;
}

Status check(const char* name, double value, double min, bool min_allowed, double max) {
  const bool ok =
      std::isfinite(value) && (min_allowed ? value >= min : value > min) && value <= max;
  if (ok) return {};
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("{}: found {}; allowed: {} {} to {}", name, value,
                            min_allowed ? "from" : "above", min, max));
}

}  // namespace

Status CostParameters::validate() const {
  const auto decode_valid = [](const std::string& at, const DecodeCosts& costs) -> Status {
    TANDEM_RETURN_IF_ERROR(check((at + "_base_ms").c_str(), costs.base_ms, 0, false, kMsMax));
    TANDEM_RETURN_IF_ERROR(
        check((at + "_per_sequence_ms").c_str(), costs.per_sequence_ms, 0, true, kMsMax));
    return check((at + "_per_context_us").c_str(), costs.per_context_us, 0, true, kUsMax);
  };
  TANDEM_RETURN_IF_ERROR(check("prefill_base_ms", prefill_base_ms, 0, true, kMsMax));
  TANDEM_RETURN_IF_ERROR(check("prefill_per_token_us", prefill_per_token_us, 0, false, kUsMax));
  TANDEM_RETURN_IF_ERROR(check("prefill_per_token2_us", prefill_per_token2_us, 0, true, kUsMax));
  TANDEM_RETURN_IF_ERROR(decode_valid("decode", decode));
  TANDEM_RETURN_IF_ERROR(check("large_batch", large_batch, 0, true, 1e6));
  if (large_batch > 0) TANDEM_RETURN_IF_ERROR(decode_valid("decode_large", decode_large));
  TANDEM_RETURN_IF_ERROR(check("chunk_overhead_tokens", chunk_overhead_tokens, 0, true, 1e5));
  TANDEM_RETURN_IF_ERROR(check("layers", layers, 1, true, 1e4));
  TANDEM_RETURN_IF_ERROR(
      check("kv_bytes_per_token", static_cast<double>(kv_bytes_per_token), 1, true, 1e9));
  TANDEM_RETURN_IF_ERROR(
      check("kv_tokens_capacity", static_cast<double>(kv_tokens_capacity), 1, true, 1e12));
  return check("gpus", gpus, 1, true, 1e4);
}

double CostParameters::prefill_ms(double first, double count) const {
  if (count <= 0) return 0;
  const double steps = step_tokens > 0 ? std::ceil(count / step_tokens) : 1;
  return prefill_base_ms * steps +
         (prefill_per_token_us * count + prefill_per_token2_us * count * (count + 2 * first)) / 1e3;
}

double CostParameters::decode_ms(double batch, double context) const {
  if (batch <= 0) return 0;
  const DecodeCosts& d = decode_costs(batch);
  return std::max(d.base_ms, prefill_per_token_us * batch / 1e3) + d.per_sequence_ms * batch +
         d.per_context_us * context / 1e3;
}

double CostParameters::mixed_ms(double first, double count, double batch, double context) const {
  if (count <= 0) return decode_ms(batch, context);
  if (batch <= 0) return prefill_ms(first, count);
  const DecodeCosts& d = decode_costs(batch);
  return std::max(d.base_ms, prefill_per_token_us * (count + batch) / 1e3) +
         d.per_sequence_ms * batch +
         (d.per_context_us * context + prefill_per_token2_us * count * (count + 2 * first) +
          prefill_per_token_us * chunk_overhead_tokens) /
             1e3;
}

CostParameters CostParameters::from(const SimConfig& sim) {
  CostParameters p;
  p.prefill_base_ms = sim.prefill_base_ms;
  p.prefill_per_token_us = sim.prefill_per_token_us;
  p.prefill_per_token2_us = sim.prefill_per_token2_us;
  p.decode = {sim.decode_base_ms, sim.decode_per_sequence_ms, sim.decode_per_context_us};
  p.layers = sim.layers;
  p.kv_bytes_per_token = sim.kv_bytes_per_token;
  return p;
}

void RecentQuantiles::add(double value) {
  if (!std::isfinite(value)) return;
  if (ring_.size() < kWindow) {
    ring_.push_back(value);
  } else {
    sorted_.erase(std::ranges::lower_bound(sorted_, ring_[next_]));
    ring_[next_] = value;
    next_ = (next_ + 1) % kWindow;
  }
  sorted_.insert(std::ranges::upper_bound(sorted_, value), value);
}

double RecentQuantiles::quantile(double q, double fallback, int enough) const {
  if (count() < std::max(1, enough)) return fallback;
  const double at = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted_.size() - 1);
  return sorted_[static_cast<size_t>(std::lround(at))];
}

LeastSquares3::LeastSquares3(const Vector& start, const Vector& spread)
    : theta_(start), spread_(spread) {
  for (size_t i = 0; i < 3; ++i) covariance_[i][i] = spread[i];
}

// The textbook form: gain k = P x / (lambda + x'P x), theta += k (y - x'theta), P = (P - k x'P) /
// lambda. Errors are weighed by 1 / target^2, since what matters is the relative error.
void LeastSquares3::learn(const Vector& features, double target) {
  Vector px{};
  double xpx = 0, predicted = 0;
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) px[i] += covariance_[i][j] * features[j];
    predicted += theta_[i] * features[i];
  }
  for (size_t i = 0; i < 3; ++i) xpx += features[i] * px[i];
  const double noise = kForgetting * 0.01 * target * target + 1e-12;
  const double denominator = noise + xpx;
  const double error = target - predicted;
  for (size_t i = 0; i < 3; ++i) theta_[i] += px[i] / denominator * error;
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 3; ++j)
      covariance_[i][j] = (covariance_[i][j] - px[i] * px[j] / denominator) / kForgetting;
  // A direction that the input never shows would grow for ever: scale it back symmetrically.
  Vector shrink;
  for (size_t i = 0; i < 3; ++i)
    shrink[i] = covariance_[i][i] > spread_[i] ? std::sqrt(spread_[i] / covariance_[i][i]) : 1.0;
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 3; ++j) covariance_[i][j] *= shrink[i] * shrink[j];
}

CostModel::CostModel(const CostParameters& prior, bool trusted)
    : prior_(prior),
      now_(prior),
      trusted_(trusted),
      prefill_(prefill_theta(prior), spread_of(prefill_theta(prior), trusted)),
      decode_(decode_theta(prior), spread_of(decode_theta(prior), trusted)) {}

void CostModel::hint(double prefill_us_per_token, double decode_step_ms) {
  const auto known = [](double value) {
    return std::isfinite(value) && value > 0 && value < kSampleMsMax;
  };
  if (trusted_ || samples_ > 0) return;
  if (known(prefill_us_per_token)) {
    prior_.prefill_base_ms = 0;
    prior_.prefill_per_token_us = prefill_us_per_token;
    prior_.prefill_per_token2_us = 0;
  }
  if (known(decode_step_ms)) prior_.decode = {decode_step_ms, 0, 0};
  now_ = prior_;
  prefill_ = {prefill_theta(prior_), spread_of(prefill_theta(prior_), false)};
  decode_ = {decode_theta(prior_), spread_of(decode_theta(prior_), false)};
}

void CostModel::observe(const StepSample& sample) {
  const bool valid = std::isfinite(sample.ms) && sample.ms > 0 && sample.ms <= kSampleMsMax &&
                     sample.prompt_tokens >= 0 && sample.prompt_first >= 0 &&
                     sample.sequences >= 0 && sample.context_tokens >= 0 &&
                     sample.prompt_tokens + sample.sequences > 0;
  if (!valid) {
    ++dropped_;
    return;
  }
  ++samples_;
  if (!trusted_) begin_with(sample);
  const double n = sample.prompt_tokens, p = sample.prompt_first, b = sample.sequences;
  const auto context = static_cast<double>(sample.context_tokens);
  const double ratio = sample.ms / std::max(1e-6, now_.mixed_ms(p, n, b, context));
  (n > 0 ? prefill_residual_ : decode_residual_).add(ratio);
  if (n == 0) {
    const bool large = now_.large_batch > 0 && b >= now_.large_batch;
    // Above w = a1 B compute bounds the step, which says nothing about w; a second regime is taken
    // from its profile.
    const bool compute_bound = now_.prefill_per_token_us * b / 1e3 > now_.decode.base_ms;
    if (!large && !(trusted_ && compute_bound))
      decode_.learn({1, b, context / kContextScale}, sample.ms);
  } else {
    // In a mixed step the decoding sequences' own share is taken out, and a chunk's overhead
    // replaced by that of a step of its own. Where the weights' reading bounds it, nothing is
    // learnt.
    double ms = sample.ms;
    if (b > 0) {
      const DecodeCosts& d = now_.decode_costs(b);
      ms += now_.prefill_base_ms - d.per_sequence_ms * b - d.per_context_us * context / 1e3 -
            now_.chunk_overhead_tokens * now_.prefill_per_token_us / 1e3;
      if (now_.prefill_per_token_us * (n + b) / 1e3 <= d.base_ms || ms <= 0) return;
    }
    prefill_.learn({1, (n + b) / kTokenScale, n * (n + 2 * p) / kSquareScale}, ms);
  }
  publish();
}

// Without a prior the first step of its kind gives the size of things: a prompt's time is its
// tokens', at most a quarter of it the step's own; a decode step's time is its base.
void CostModel::begin_with(const StepSample& sample) {
  const auto square = [](double value) { return std::max(value * value, 1e-9); };
  if (sample.prompt_tokens == 0 && !decode_begun_) {
    decode_begun_ = true;
    prior_.decode = {sample.ms, 0, 0};
    decode_ = {decode_theta(prior_), spread_of(decode_theta(prior_), false)};
  } else if (sample.prompt_tokens > 0 && sample.sequences == 0 && !prefill_begun_) {
    prefill_begun_ = true;
    prior_.prefill_base_ms = prior_.prefill_per_token2_us = 0;
    prior_.prefill_per_token_us = sample.ms * 1e3 / sample.prompt_tokens;
    const Vector theta = prefill_theta(prior_);
    prefill_ = {theta, {square(sample.ms / 4), square(theta[1]), square(theta[1])}};
  }
  publish();
}

// Keeps the coefficients where they may be, and takes them over.
void CostModel::publish() {
  const auto hold = [this](Vector& theta, const Vector& prior) {
    for (size_t i = 0; i < 3; ++i)
      theta[i] = trusted_ ? std::clamp(theta[i], prior[i] * (1 - kTrustedBand),
                                       prior[i] * (1 + kTrustedBand))
                          : std::max(theta[i], 0.0);
  };
  hold(prefill_.theta(), prefill_theta(prior_));
  hold(decode_.theta(), decode_theta(prior_));
  const Vector& p = prefill_.theta();
  const Vector& d = decode_.theta();
  now_.prefill_base_ms = p[0];
  now_.prefill_per_token_us = std::max(1e-3, p[1] * 1e3 / kTokenScale);
  now_.prefill_per_token2_us = p[2] * 1e3 / kSquareScale;
  now_.decode = {std::max(1e-3, d[0]), d[1], d[2] * 1e3 / kContextScale};
}

}  // namespace tandem::scheduler

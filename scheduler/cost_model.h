// How long a worker's steps take: the formulas of prefill, decode and mixed steps, and a live model
// that learns their coefficients from what a worker measures. Sources: docs/scheduling.md, "Time".
//
// Pure values without clock or randomness. A CostModel belongs to one thread; CostParameters are
// plain numbers that anybody copies.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/config.h"
#include "common/status.h"

namespace tandem::scheduler {

struct StepSample;

// Coefficients of a decode step: max(base, a1 B) + per_sequence B + per_context S.
struct DecodeCosts {
  double base_ms = 0;          // w: reading the weights once
  double per_sequence_ms = 0;  // beta
  double per_context_us = 0;   // gamma, per token of context
};

struct CostParameters {
  double prefill_base_ms = 18.1;           // a0
  double prefill_per_token_us = 65.8;      // a1
  double prefill_per_token2_us = 1.68e-3;  // a2, per token squared
  DecodeCosts decode{12.2, 0.04, 0.086};
  // From this many sequences on, `decode_large` holds instead; 0: one regime.
  int large_batch = 0;
  DecodeCosts decode_large;
  // A chunk that shares its step with decoding costs this many tokens more (half-filled tiles).
  double chunk_overhead_tokens = 128;
  // Prompts run in steps of this many tokens, each of which costs a0; 0: whole.
  double step_tokens = 0;
  int layers = 32;
  int64_t kv_bytes_per_token = 131072;  // All layers, K and V together
  int64_t kv_tokens_capacity = 412000;
  int gpus = 1;

  // The message says which number is wrong and what is allowed.
  Status validate() const;

  // A prompt's tokens [first, first + count), alone in their steps.
  double prefill_ms(double first, double count) const;
  // `batch` sequences with `context` tokens of context together.
  double decode_ms(double batch, double context) const;
  // Both in one step.
  double mixed_ms(double first, double count, double batch, double context) const;
  // What the same step takes longer for the prompt tokens in it.
  double chunk_extra_ms(double first, double count, double batch, double context) const {
    return mixed_ms(first, count, batch, context) - decode_ms(batch, context);
  }

  const DecodeCosts& decode_costs(double batch) const {
    return large_batch > 0 && batch >= large_batch ? decode_large : decode;
  }
  static CostParameters from(const SimConfig& sim);
};

// Quantiles over the last kWindow values.
class RecentQuantiles {
 public:
  static constexpr int kWindow = 256;
  void add(double value);
  // `fallback` while there are fewer than `enough` values.
  double quantile(double q, double fallback, int enough = 8) const;
  int count() const { return static_cast<int>(sorted_.size()); }

 private:
  std::vector<double> ring_;
  std::vector<double> sorted_;
  size_t next_ = 0;
};

// Recursive least squares with forgetting over three coefficients.
class LeastSquares3 {
 public:
  using Vector = std::array<double, 3>;
  LeastSquares3(const Vector& start, const Vector& spread);
  void learn(const Vector& features, double target);
  Vector& theta() { return theta_; }
  const Vector& theta() const { return theta_; }

 private:
  Vector theta_;
  Vector spread_;  // Bounds of the diagonal: steady input must not blow the covariance up
  std::array<Vector, 3> covariance_{};
};

// One worker's live model.
class CostModel {
 public:
  // `trusted`: the prior is a profile of this worker, and what is learnt stays within +/- 50% of
  // it. Otherwise it is a start-up probe or a guess, and only the sign is held.
  CostModel(const CostParameters& prior, bool trusted);

  // What a worker measured of one step. Not finite, not above 0 or above an hour: dropped and
  // counted.
  void observe(const StepSample& sample);
  // A worker's smoothed rates, for a model that is not trusted and has seen no sample; 0: unknown.
  void hint(double prefill_us_per_token, double decode_step_ms);

  const CostParameters& parameters() const { return now_; }
  // Measured over predicted time of recent steps.
  double prefill_ratio(double q) const { return prefill_residual_.quantile(q, 1.0); }
  double decode_ratio(double q) const { return decode_residual_.quantile(q, 1.0); }
  int64_t samples() const { return samples_; }
  int64_t samples_dropped() const { return dropped_; }

 private:
  void begin_with(const StepSample& sample);
  void publish();

  CostParameters prior_;
  CostParameters now_;
  bool trusted_;
  LeastSquares3 prefill_;
  LeastSquares3 decode_;
  RecentQuantiles prefill_residual_;
  RecentQuantiles decode_residual_;
  bool prefill_begun_ = false;  // Untrusted: a first sample has set the scale
  bool decode_begun_ = false;
  int64_t samples_ = 0;
  int64_t dropped_ = 0;
};

}  // namespace tandem::scheduler

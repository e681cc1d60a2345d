// When the requests of an open loop are sent. Same mathematics as `vllm bench serve`: gamma
// intervals with shape `burstiness` (1: Poisson; above: smoother; below: burstier), then scaled so
// that the last of n arrivals falls on n / rate. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::bench {

struct ArrivalPlan {
  enum class Kind { kPoisson, kGamma, kConstant };
  Kind kind = Kind::kPoisson;
  double rate = 1.0;        // Requests per second
  double burstiness = 1.0;  // kGamma only
  double ramp_from = 0.0;   // With ramp_to: the rate grows linearly with the request's number,
  double ramp_to = 0.0;     // and `rate` is not used
  size_t count = 0;
  uint64_t seed = 0;
};

// Seconds after the start, ascending. Requires: every rate > 0, burstiness > 0.
std::vector<double> arrival_times(const ArrivalPlan& plan);

}  // namespace tandem::bench

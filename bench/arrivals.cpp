#include "bench/arrivals.h"

#include <random>

namespace tandem::bench {

std::vector<double> arrival_times(const ArrivalPlan& plan) {
  std::mt19937_64 generator(plan.seed);
  const bool ramp = plan.ramp_to > 0.0;
  const double shape = plan.kind == ArrivalPlan::Kind::kGamma ? plan.burstiness : 1.0;
  std::vector<double> times;
  times.reserve(plan.count);
  double now = 0.0;
  for (size_t i = 0; i < plan.count; ++i) {
    const double progress = static_cast<double>(i) / static_cast<double>(plan.count);
    const double rate =
        ramp ? plan.ramp_from + (plan.ramp_to - plan.ramp_from) * progress : plan.rate;
    if (plan.kind == ArrivalPlan::Kind::kConstant) {
      now += 1.0 / rate;
    } else {
      now += std::gamma_distribution<double>(shape, 1.0 / (rate * shape))(generator);
    }
    times.push_back(now);
  }
  if (!ramp && now > 0.0) {
    const double scale = static_cast<double>(plan.count) / plan.rate / now;
    for (double& time : times) time *= scale;
  }
  return times;
}

}  // namespace tandem::bench

// How many prefill and decode workers, or coupled ones, a trace needs: the cheapest cluster whose
// simulated requests meet both limits often enough. Pure functions over the simulator.
#pragma once

#include <string>
#include <vector>

#include "bench/trace.h"
#include "simulator/settings.h"

namespace tandem::simulator {

struct PlanCandidate {
  int prefill = 0;
  int decode = 0;
  int coupled = 0;
  double attainment = 0;  // Of all requests, within both limits
  double within_ttft = 0;
  double within_tpot = 0;
  double prefill_busy = 0;
  double decode_busy = 0;
  bool holds = false;
  std::string why;  // Why it is not the answer; empty for the answer

  int workers() const { return prefill + decode + coupled; }
  std::string text() const;  // "3 prefill + 2 decode"
};

struct Plan {
  PlanCandidate best;
  std::vector<PlanCandidate> others;  // The nearest ones that lost
  scheduler::Profile profile;
  double attainment_wanted = 0.9;
  double requests_per_s = 0;
  int context = 0;  // Longest prompt and answer of the trace
  int simulations = 0;
};

// Requires: `rows` is not empty. Fails where no number of workers could do it, and says which limit
// is impossible and by how much, or where more than `workers_max` were needed.
Result<Plan> make_plan(const Settings& settings, const std::vector<bench::TraceRow>& rows,
                       int workers_max);

// For people.
std::string plan_table(const Settings& settings, const Plan& plan);
std::string plan_json(const Settings& settings, const Plan& plan);
// A configuration that `tandem up` starts: the plan's workers, on the sim engine with the profile's
// costs.
std::string plan_config(const Settings& settings, const Plan& plan);

}  // namespace tandem::simulator

// Named cost profiles of models on accelerators: priors for live workers, and what the simulator
// and the planner describe workers with. Constant data; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scheduler/cost_model.h"

namespace tandem::scheduler {

struct Profile {
  std::string name;    // "llama-3-8b-h100"
  std::string source;  // Where the numbers are from
  CostParameters costs;
};

// The failure names those that exist. "sim" stands for the configuration's sim section.
Result<Profile> find_profile(std::string_view name, const SimConfig& sim = {});
std::vector<std::string> profile_names();

}  // namespace tandem::scheduler

// A cost profile by name, or from a YAML file whose keys are those of CostParameters.
#pragma once

#include <string>

#include "common/status.h"
#include "scheduler/profiles.h"

namespace tandem::simulator {

// `what` ends in .yaml or .yml: a file; else one of scheduler::profile_names(). A failure names
// the key that is unknown, or the number that is wrong and what is allowed.
Result<scheduler::Profile> load_profile(const std::string& what);
Result<scheduler::Profile> parse_profile(const std::string& text, const std::string& name);

}  // namespace tandem::simulator

// Which engine the suite runs over: one definition per executable.
#pragma once

#include "common/config.h"

namespace tandem::worker {

// False: this build or machine cannot, and the suite has nothing to say.
bool subject_available();
Config subject_config();

}  // namespace tandem::worker

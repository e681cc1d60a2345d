// Which engine the suite runs against: one definition per executable.
#pragma once

#include "common/config.h"

namespace tandem {

Config subject_config();

}  // namespace tandem

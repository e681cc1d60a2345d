// The whole main() of a worker program: arguments, configuration, workers, signals.
#pragma once

#include <string_view>

#include "common/types.h"

namespace tandem::worker {

// Serves until SIGTERM (drains first, within router.drain_deadline_ms) or SIGINT. Returns the exit
// code.
int run_main(int argc, char** argv, std::string_view program, Role default_role);

}  // namespace tandem::worker

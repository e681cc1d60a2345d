// The start-up probe: a few short steps, so that a scheduler's first prediction is not blind.
#pragma once

#include <vector>

#include "common/clock.h"
#include "engine/engine.h"
#include "link/messages.h"

namespace tandem::worker {

// Takes a fraction of a second on an engine that really computes. The sim engine is not asked: its
// configuration says how long its steps take. Requires: no sequence is open.
Result<std::vector<link::StepSample>> probe_engine(Engine& engine, const Config& config,
                                                   const Clock& clock);

}  // namespace tandem::worker

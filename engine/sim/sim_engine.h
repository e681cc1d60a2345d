// The engine without weights: durations from a cost model, real bytes in its KV rows, text that
// depends on both.
//
// Waits block on a condition variable until a deadline and never spin, so that one process hosts
// many of these. Everything else (rows, observer, samplers) is done at once. Threads and shutdown:
// as Engine.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace tandem {

Result<std::unique_ptr<Engine>> make_sim_engine(const Config& config, int slots, int threads);

}  // namespace tandem

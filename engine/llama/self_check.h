// What an engine proves about itself before it serves: that the rows it shows to observers are
// final, that rows exported from one sequence and imported into another give bit-identical logits,
// and up to which batch size results do not depend on the size. Runs once, on the engine thread, on
// an engine without open sequences.
#pragma once

#include "common/status.h"

namespace tandem {

class LlamaEngine;

// The largest exact batch, or why the engine must not serve.
Result<int> run_self_check(LlamaEngine& engine, int tokens);

}  // namespace tandem

// What the sim engine says next: synthetic candidates that depend on the sequence's state, and
// draws from them. Stateless; any thread.
#pragma once

#include <cstdint>

#include "engine/choice.h"
#include "engine/sampling.h"

namespace tandem {

// Draws with `choice`'s parameters from the candidates that `state` implies. Does not accept the
// token.
SampledToken sim_sample(uint64_t state, int vocab, const Choice& choice);

}  // namespace tandem

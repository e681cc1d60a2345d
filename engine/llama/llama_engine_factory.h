// The engine on libllama, as make_engine() sees it: no libllama type shows.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace tandem {

Result<std::unique_ptr<Engine>> make_llama_engine(const Config& config, int slots, int threads);

}  // namespace tandem

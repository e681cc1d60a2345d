#include "engine/engine.h"

#include "engine/chunk_grid.h"
#include "engine/llama/llama_engine_factory.h"
#include "engine/sim/sim_engine.h"

namespace tandem {

Result<std::unique_ptr<Engine>> make_engine(const Config& config, int slots, int threads) {
  if (slots < 1 || threads < 1) {
    return Status(ErrorCode::kInvalidArgument, "an engine needs at least one slot and one thread");
  }
  if (config.engine.chunk_tokens < kChunkTokensMin) {
    return Status(ErrorCode::kInvalidArgument,
                  "engine.chunk_tokens must be at least " + std::to_string(kChunkTokensMin));
  }
  if (config.model.engine == "sim") return make_sim_engine(config, slots, threads);
  if (config.model.engine == "llama") return make_llama_engine(config, slots, threads);
  return Status(ErrorCode::kInvalidArgument,
                "model.engine is '" + config.model.engine + "', allowed are llama and sim");
}

}  // namespace tandem

#include "engine/llama/llama_engine_factory.h"

namespace tandem {

Result<std::unique_ptr<Engine>> make_llama_engine(const Config&, int, int) {
  return Status(
      ErrorCode::kFailedPrecondition,
      "this build has no llama engine: set model.engine to sim, or build with TANDEM_LLAMA=ON");
}

}  // namespace tandem

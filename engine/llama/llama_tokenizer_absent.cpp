#include "engine/llama/llama_tokenizer.h"

namespace tandem {

Result<std::unique_ptr<Tokenizer>> make_llama_tokenizer(const Config&) {
  return Status(
      ErrorCode::kFailedPrecondition,
      "this build has no llama engine: set model.engine to sim, or build with TANDEM_LLAMA=ON");
}

}  // namespace tandem

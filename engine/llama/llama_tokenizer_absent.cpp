#include "engine/llama/llama_tokenizer.h"

namespace tandem {

namespace {
Status absent() {
  return Status(
      ErrorCode::kFailedPrecondition,
      "this build has no llama engine: set model.engine to sim, or build with TANDEM_LLAMA=ON");
}
}  // namespace

Result<std::unique_ptr<Tokenizer>> make_llama_tokenizer(const Config&) { return absent(); }
Result<std::string> llama_model_digest(const std::string&) { return absent(); }

}  // namespace tandem

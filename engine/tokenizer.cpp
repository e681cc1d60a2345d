#include "engine/tokenizer.h"

#include "engine/llama/llama_tokenizer.h"
#include "engine/sim/sim_tokenizer.h"

namespace tandem {

Result<std::unique_ptr<Tokenizer>> make_tokenizer(const Config& config) {
  if (config.model.engine == "sim") return make_sim_tokenizer(config);
  if (config.model.engine == "llama") return make_llama_tokenizer(config);
  return Status(ErrorCode::kInvalidArgument,
                "model.engine is '" + config.model.engine + "', allowed are llama and sim");
}

Result<std::string> configured_model_digest(const Config& config) {
  return config.model.engine == "llama" ? llama_model_digest(config.model.path) : std::string();
}

}  // namespace tandem

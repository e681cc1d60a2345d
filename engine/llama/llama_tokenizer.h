// The tokenizer of a GGUF file.
#pragma once

#include <memory>

#include "engine/tokenizer.h"

namespace tandem {

Result<std::unique_ptr<Tokenizer>> make_llama_tokenizer(const Config& config);
Result<std::string> llama_model_digest(const std::string& path);

}  // namespace tandem

// Facts about a GGUF vocabulary that engine and tokenizer must agree on.
#pragma once

#include <llama.h>

#include <string>
#include <vector>

#include "common/types.h"

namespace tandem {

// Tokens that end an answer, ascending.
std::vector<TokenId> end_tokens(const llama_vocab* vocab);
// Over everything that decides how text becomes tokens and back.
std::string vocab_digest(const llama_vocab* vocab);

}  // namespace tandem

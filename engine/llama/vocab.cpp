#include "engine/llama/vocab.h"

#include <bit>

#include "engine/digest.h"

namespace tandem {

std::vector<TokenId> end_tokens(const llama_vocab* vocab) {
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
    if (llama_vocab_is_eog(vocab, token)) tokens.push_back(token);
  }
  return tokens;
}

std::string vocab_digest(const llama_vocab* vocab) {
  Digest digest("vocab");
  const int count = llama_vocab_n_tokens(vocab);
  digest.add(static_cast<uint64_t>(llama_vocab_type(vocab)));
  digest.add(static_cast<uint64_t>(count));
  for (TokenId token = 0; token < count; ++token) {
    digest.add(std::string_view(llama_vocab_get_text(vocab, token)));
    const auto score = std::bit_cast<uint32_t>(llama_vocab_get_score(vocab, token));
    digest.add((static_cast<uint64_t>(llama_vocab_get_attr(vocab, token)) << 32) | score);
  }
  for (const TokenId token :
       {llama_vocab_bos(vocab), llama_vocab_eos(vocab), llama_vocab_eot(vocab)}) {
    digest.add(static_cast<uint64_t>(token));
  }
  digest.add(static_cast<uint64_t>(llama_vocab_get_add_bos(vocab)) * 2 +
             static_cast<uint64_t>(llama_vocab_get_add_eos(vocab)));
  for (const TokenId token : end_tokens(vocab)) digest.add(static_cast<uint64_t>(token));
  return digest.hex();
}

}  // namespace tandem

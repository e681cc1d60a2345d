// One choice's sampler on libllama: our own history and penalties, libllama's chain of filters, our
// own draw. Engine thread only.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/choice.h"
#include "engine/llama/handles.h"

namespace tandem {

class LlamaChoice final : public Sampler {
 public:
  explicit LlamaChoice(std::unique_ptr<Choice> choice);

  int emitted() const override { return choice_->emitted(); }
  void accept(TokenId token) override { choice_->accept(token); }

  // Draws from the raw logits of the whole vocabulary and accepts the token. `scratch` is reused
  // between calls.
  SampledToken sample(std::span<const float> logits, std::vector<llama_token_data>& scratch);

 private:
  TokenId best(std::span<const float> logits) const;
  TokenId draw(std::span<const float> logits, std::vector<llama_token_data>& scratch);

  std::unique_ptr<Choice> choice_;
  LlamaSampler
      chain_;  // Null for greedy choices; its last member draws with choice_'s random numbers
};

}  // namespace tandem

// Sampling parameters of one request, and the sampler of one choice.
//
// Draws come from a counter-based generator keyed by (seed, position), so that a second worker that
// knows prompt, emitted tokens and seed continues a sampled sequence exactly where the first
// stopped.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/types.h"

namespace tandem {

struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  int top_k = 0;  // 0: off
  double min_p = 0.0;
  double repetition_penalty = 1.0;  // Over prompt and output
  double frequency_penalty = 0.0;   // Over output
  double presence_penalty = 0.0;    // Over output
  std::vector<std::pair<TokenId, float>> logit_bias;
  uint64_t seed = 0;   // Already mixed with the choice's index: see choice_seed()
  int min_tokens = 0;  // End and stop tokens are suppressed until this many are out
  bool ignore_eos = false;
  std::vector<TokenId> stop_tokens;  // End the answer beside the model's own end tokens
  int logprobs = -1;  // -1: none; 0: the chosen token's; k: also the k best (at most 20)

  bool operator==(const SamplingParams&) const = default;
};

// The seed of one choice: the request's seed mixed with the prompt's and the choice's index.
uint64_t choice_seed(uint64_t request_seed, int prompt_index, int choice_index);

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;  // Log-softmax of the raw logits; never below -9999, never NaN
  bool operator==(const TokenLogprob&) const = default;
};

enum class FinishReason : uint8_t { kNone, kEndOfText, kStopToken, kLength };

struct SampledToken {
  TokenId token = 0;
  FinishReason finish =
      FinishReason::kNone;        // kEndOfText or kStopToken when the token ends the answer
  float logprob = 0;              // Set when logprobs >= 0
  std::vector<TokenLogprob> top;  // Descending; empty unless logprobs > 0
};

// State of one choice: its history and how many tokens it has emitted. Created by
// Engine::make_sampler.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // Tokens that this choice has emitted, those before a resume included.
  virtual int emitted() const = 0;
  // Adds a token that another worker sampled (the first one of a hand-over).
  virtual void accept(TokenId token) = 0;
};

}  // namespace tandem

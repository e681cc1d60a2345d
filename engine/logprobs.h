// Log-probabilities of raw logits, as the API promises them: log-softmax in double, never below
// -9999, never NaN, the chosen token's value bit-identical to its entry among the best. Stateless.
#pragma once

#include <span>

#include "engine/sampling.h"

namespace tandem {

inline constexpr float kLogprobFloor = -9999.0f;
inline constexpr int kTopLogprobsMax = 20;

// Sets `sampled.logprob` and, where top > 0, the `top` best tokens: descending, ties by id.
// logits[i] belongs to ids[i], or to token i when `ids` is empty. A sampled token that is not among
// them gets the floor.
void set_logprobs(std::span<const float> logits, std::span<const TokenId> ids, int top,
                  SampledToken& sampled);

}  // namespace tandem

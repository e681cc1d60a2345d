// One choice of one request as every engine keeps it: parameters, history, and what they do to
// logits and to the end of the answer. Engine thread only; plain data, nothing to shut down.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/status.h"
#include "engine/sampling.h"

namespace tandem {

// What an engine knows about its vocabulary.
struct VocabFacts {
  int size = 0;
  std::vector<TokenId> end_tokens;  // Ascending
  bool is_end(TokenId token) const;
};

class Choice final : public Sampler {
 public:
  // kInvalidArgument for tokens outside the vocabulary and parameters outside their ranges.
  static Result<std::unique_ptr<Choice>> make(const SamplingParams& params, const VocabFacts& vocab,
                                              std::span<const TokenId> history, int prompt_count);

  int emitted() const override { return emitted_; }
  void accept(TokenId token) override;

  const SamplingParams& params() const { return params_; }
  // The logit of `token` after penalties, bias and the suppression of ends.
  float adjusted(TokenId token, float logit) const;
  // Every token whose logit adjusted() may change, each once.
  void for_each_adjusted(const std::function<void(TokenId)>& visit) const;
  // Is adjusted() the identity?
  bool plain() const;
  // Why the answer ends with `token`, if it does.
  FinishReason finish_of(TokenId token) const;
  // The random number of the next draw, in [0, 1).
  double next_uniform() const;

 private:
  Choice(const SamplingParams& params, const VocabFacts& vocab) : params_(params), vocab_(vocab) {}
  bool suppressed(TokenId token) const;
  bool is_stop(TokenId token) const;

  struct Counts {
    int all = 0;  // In prompt and output
    int output = 0;
  };

  SamplingParams params_;
  const VocabFacts& vocab_;                     // The engine's; outlives its samplers
  std::unordered_map<TokenId, Counts> counts_;  // Empty while no penalty needs it
  std::unordered_map<TokenId, float> bias_;
  int emitted_ = 0;
};

}  // namespace tandem

#include "engine/sim/sim_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/random.h"
#include "engine/logprobs.h"
#include "engine/sim/sim_tokenizer.h"

namespace tandem {

namespace {

constexpr int kWords = 24;           // More than the best 20 that logprobs may ask for
constexpr uint64_t kEndOdds = 256;   // One token in so many ends the text
constexpr float kUnlikely = -12.0f;  // Logit of a token that is not among the words

struct Candidate {
  TokenId token = 0;
  float logit = 0;  // Raw
  float adjusted = 0;
};

std::vector<Candidate> candidates(uint64_t state, int vocab) {
  std::vector<Candidate> found;
  const auto words = static_cast<uint64_t>(vocab - kSimFirstWord);
  const uint64_t start = counter_random(state, 0) % words;
  // Neighbours in the vocabulary, so that they differ; 24 of at least 252.
  for (uint64_t i = 0; i < kWords; ++i) {
    const auto token = static_cast<TokenId>((start + i * 7) % words) + kSimFirstWord;
    const auto jitter = static_cast<float>(counter_uniform(state, 1 + i)) * 0.3f;
    found.push_back({token, 3.0f - 0.35f * static_cast<float>(i) + jitter, 0});
  }
  const bool ends = counter_random(state, 100) % kEndOdds == 0;
  found.push_back({kSimEnd, ends ? 8.0f : kUnlikely, 0});
  return found;
}

bool better(const Candidate& a, const Candidate& b) {
  return a.adjusted != b.adjusted ? a.adjusted > b.adjusted : a.token < b.token;
}

// `sorted`: best first. Returns the index of the drawn one.
size_t draw(const std::vector<Candidate>& sorted, const Choice& choice) {
  const SamplingParams& params = choice.params();
  if (params.temperature == 0 || params.top_p == 0) return 0;
  size_t count = sorted.size();
  if (params.top_k > 0) count = std::min(count, static_cast<size_t>(params.top_k));
  std::vector<double> weights;
  double total = 0;
  for (size_t i = 0; i < count; ++i) {
    weights.push_back(std::exp((static_cast<double>(sorted[i].adjusted) - sorted[0].adjusted) /
                               params.temperature));
    total += weights.back();
  }
  double kept = 0;
  size_t keep = 0;
  while (keep < count &&
         (keep == 0 || (kept < params.top_p * total && weights[keep] >= params.min_p))) {
    kept += weights[keep++];
  }
  double left = choice.next_uniform() * kept;
  for (size_t i = 0; i + 1 < keep; ++i) {
    if (left < weights[i]) return i;
    left -= weights[i];
  }
  return keep - 1;
}

}  // namespace

SampledToken sim_sample(uint64_t state, int vocab, const Choice& choice) {
  std::vector<Candidate> found = candidates(state, vocab);
  // Tokens that only a bias can bring up.
  for (const auto& [token, bias] : choice.params().logit_bias) {
    const auto same = [id = token](const Candidate& candidate) { return candidate.token == id; };
    if (std::none_of(found.begin(), found.end(), same)) found.push_back({token, kUnlikely, 0});
  }
  for (Candidate& candidate : found) {
    candidate.adjusted = choice.adjusted(candidate.token, candidate.logit);
  }
  std::sort(found.begin(), found.end(), better);
  SampledToken sampled;
  sampled.token = found[draw(found, choice)].token;
  sampled.finish = choice.finish_of(sampled.token);
  if (choice.params().logprobs >= 0) {
    std::vector<float> logits;
    std::vector<TokenId> ids;
    for (const Candidate& candidate : found) {
      logits.push_back(candidate.logit);
      ids.push_back(candidate.token);
    }
    set_logprobs(logits, ids, choice.params().logprobs, sampled);
  }
  return sampled;
}

}  // namespace tandem

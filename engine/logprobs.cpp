#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace tandem {

namespace {

// NaN orders as the least.
float ordered(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
}

double log_sum_exp(std::span<const float> logits, float most) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(ordered(logit)) - most);
  return most + std::log(sum);
}

float to_logprob(float logit, double total) {
  const double value = static_cast<double>(ordered(logit)) - total;
  return value > kLogprobFloor ? static_cast<float>(value) : kLogprobFloor;
}

}  // namespace

void set_logprobs(std::span<const float> logits, std::span<const TokenId> ids, int top,
                  SampledToken& sampled) {
  sampled.logprob = kLogprobFloor;
  sampled.top.clear();
  if (logits.empty()) return;
  const auto token_at = [&](size_t i) { return ids.empty() ? static_cast<TokenId>(i) : ids[i]; };
  float most = ordered(logits[0]);
  for (const float logit : logits) most = std::max(most, ordered(logit));
  // All logits -inf: nothing is likely, and every value below is the floor.
  const double total = std::isinf(most) ? 0.0 : log_sum_exp(logits, most);

  for (size_t i = 0; i < logits.size(); ++i) {
    if (token_at(i) == sampled.token) {
      sampled.logprob = to_logprob(logits[i], total);
      break;
    }
  }
  const size_t count =
      std::min<size_t>(logits.size(), static_cast<size_t>(std::clamp(top, 0, kTopLogprobsMax)));
  if (count == 0) return;
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto better = [&](size_t a, size_t b) {
    const float left = ordered(logits[a]), right = ordered(logits[b]);
    return left != right ? left > right : token_at(a) < token_at(b);
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                    better);
  for (size_t i = 0; i < count; ++i) {
    sampled.top.push_back({token_at(order[i]), to_logprob(logits[order[i]], total)});
  }
}

}  // namespace tandem

// Log-probabilities keep their promises for ordinary and for degenerate logits.
#include "engine/logprobs.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

SampledToken chosen(TokenId token) {
  SampledToken sampled;
  sampled.token = token;
  return sampled;
}

TEST_CASE("the best come sorted, ties by id, and the chosen one has the same bits") {
  const std::vector<float> logits = {1.0f, 3.0f, 3.0f, -2.0f, 2.5f};
  SampledToken sampled = chosen(4);
  set_logprobs(logits, {}, 4, sampled);
  REQUIRE(sampled.top.size() == 4);
  CHECK(sampled.top[0].token == 1);
  CHECK(sampled.top[1].token == 2);
  CHECK(sampled.top[2].token == 4);
  CHECK(sampled.top[3].token == 0);
  CHECK(sampled.top[2].logprob == sampled.logprob);
  double sum = 0;
  for (TokenId token = 0; token < 5; ++token) {
    SampledToken one = chosen(token);
    set_logprobs(logits, {}, 0, one);
    CHECK(one.top.empty());
    sum += std::exp(static_cast<double>(one.logprob));
  }
  CHECK(sum == doctest::Approx(1.0));
}

TEST_CASE("infinite and undefined logits give finite values") {
  SampledToken sampled = chosen(1);
  set_logprobs(std::vector<float>{0.0f, -kInfinity, std::nanf("")}, {}, 3, sampled);
  CHECK(sampled.logprob == kLogprobFloor);
  CHECK(sampled.top[0] == TokenLogprob{0, 0.0f});
  CHECK(sampled.top[1] == TokenLogprob{1, kLogprobFloor});
  CHECK(sampled.top[2] == TokenLogprob{2, kLogprobFloor});
  sampled = chosen(0);
  set_logprobs(std::vector<float>{-kInfinity, -kInfinity}, {}, 1, sampled);
  CHECK(sampled.logprob == kLogprobFloor);
}

TEST_CASE("no more than 20 are given, and a token outside the list gets the floor") {
  const std::vector<float> logits(30, 0.5f);
  std::vector<TokenId> ids;
  for (TokenId id = 100; id < 130; ++id) ids.push_back(id);
  SampledToken sampled = chosen(5);
  set_logprobs(logits, ids, 25, sampled);
  CHECK(sampled.top.size() == 20);
  CHECK(sampled.top[0].token == 100);
  CHECK(sampled.logprob == kLogprobFloor);
}

}  // namespace
}  // namespace tandem

// Sampling parameters mean the same on every engine.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/contract/engine/fixture.h"

namespace tandem {
namespace {

std::vector<SampledToken> answer(const SamplingParams& params, int count, int prompt = 40) {
  Run run(first_engine(), make_prompt(prompt, 21), params);
  run.prefill();
  return run.generate(count);
}

SamplingParams drawn_to(TokenId token) {
  SamplingParams params = greedy();
  params.ignore_eos = false;
  params.logit_bias = {{token, 1000.0f}};
  return params;
}

TEST_CASE("an end token ends the answer unless it is ignored") {
  SamplingParams params = drawn_to(end_token());
  CHECK(answer(params, 1)[0].token == end_token());
  CHECK(answer(params, 1)[0].finish == FinishReason::kEndOfText);
  params.ignore_eos = true;
  for (const SampledToken& token : answer(params, 3)) {
    CHECK(token.token == end_token());
    CHECK(token.finish == FinishReason::kNone);
  }
}

TEST_CASE("stop tokens end the answer") {
  const TokenId stop = answer(greedy(), 1)[0].token;
  SamplingParams params = greedy();
  params.stop_tokens = {stop};
  const SampledToken token = answer(params, 1)[0];
  CHECK(token.token == stop);
  CHECK(token.finish == FinishReason::kStopToken);
}

TEST_CASE("min_tokens keeps ends and stops away until enough is out") {
  for (const double temperature : {0.0, 1.0}) {
    SamplingParams params = drawn_to(end_token());
    params.temperature = temperature;
    params.min_tokens = 3;
    const std::vector<SampledToken> tokens = answer(params, 4);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(tokens[i].token != end_token());
      CHECK(tokens[i].finish == FinishReason::kNone);
    }
    CHECK(tokens[3].finish == FinishReason::kEndOfText);
  }
}

TEST_CASE("min_tokens counts tokens from before a resume") {
  SamplingParams params = drawn_to(end_token());
  params.min_tokens = 3;
  const std::vector<TokenId> prompt = make_prompt(40, 21);
  Run run(first_engine(), prompt, params);
  run.prefill();
  const std::vector<TokenId> said = ids(run.generate(2));
  Run resumed(second_engine(), prompt, params, said);
  resumed.prefill();
  CHECK(resumed.sample().finish == FinishReason::kNone);
}

TEST_CASE("logit_bias bans a token and brings one up") {
  const TokenId favourite = answer(greedy(), 1)[0].token;
  SamplingParams params = greedy();
  params.logit_bias = {{favourite, -std::numeric_limits<float>::infinity()}};
  CHECK(answer(params, 1)[0].token != favourite);
  params.logit_bias = {{300, 1000.0f}};
  CHECK(answer(params, 1)[0].token == 300);
  params.temperature = 1.0;
  CHECK(answer(params, 1)[0].token == 300);
}

TEST_CASE("the seed decides a sampled answer, and nothing else does") {
  SamplingParams params = sampled(1);
  params.temperature = 1.5;
  const std::vector<SampledToken> first = answer(params, 16);
  CHECK(same(answer(params, 16), first));
  params.seed = 2;
  CHECK_FALSE(same(answer(params, 16), first));
}

TEST_CASE("choices sampled from the same logits differ by their seeds alone") {
  Run run(first_engine(), make_prompt(40, 22), greedy());
  run.prefill();
  std::vector<TokenId> firsts;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SamplingParams params = sampled(choice_seed(5, 0, static_cast<int>(seed)));
    params.temperature = 2.0;
    for (int repeat = 0; repeat < 2; ++repeat) {
      auto sampler = *first_engine().make_sampler(params, run.tokens, run.prompt_count);
      firsts.push_back(first_engine().sample(run.sequence, *sampler)->token);
    }
    CHECK(firsts[firsts.size() - 1] == firsts[firsts.size() - 2]);
  }
  std::sort(firsts.begin(), firsts.end());
  CHECK(std::unique(firsts.begin(), firsts.end()) - firsts.begin() > 1);
}

TEST_CASE("filters that leave one token are greedy") {
  const std::vector<TokenId> expected = ids(answer(greedy(), 4));
  for (const int filter : {0, 1, 2, 3}) {
    CAPTURE(filter);
    SamplingParams params = sampled(3);
    if (filter == 0) params.top_k = 1;
    if (filter == 1) params.top_p = 0;
    if (filter == 2) params.min_p = 1.0;
    if (filter == 3) params.temperature = 1e-4;
    CHECK(ids(answer(params, 4)) == expected);
  }
}

TEST_CASE("log-probabilities are sorted, finite and agree with the chosen token") {
  for (const SamplingParams& base : {greedy(), sampled(9)}) {
    SamplingParams params = base;
    params.logprobs = 5;
    for (const SampledToken& token : answer(params, 6)) {
      REQUIRE(token.top.size() == 5);
      double mass = 0;
      for (size_t i = 0; i < 5; ++i) {
        CHECK(std::isfinite(token.top[i].logprob));
        CHECK(token.top[i].logprob <= 0);
        CHECK(token.top[i].logprob >= -9999);
        if (i > 0) CHECK(token.top[i].logprob <= token.top[i - 1].logprob);
        if (token.top[i].token == token.token) CHECK(token.top[i].logprob == token.logprob);
        mass += std::exp(static_cast<double>(token.top[i].logprob));
      }
      CHECK(mass <= 1.0 + 1e-6);
      CHECK(token.logprob <= token.top[0].logprob);
      if (params.temperature == 0) CHECK(token.token == token.top[0].token);
    }
  }
}

TEST_CASE("log-probabilities are raw and given only as far as they are asked for") {
  SamplingParams params = greedy();
  params.logprobs = 0;
  const SampledToken plain = answer(params, 1)[0];
  CHECK(plain.top.empty());
  CHECK(plain.logprob < 0);
  params.logprobs = -1;
  CHECK(answer(params, 1)[0].logprob == 0);
  params.logprobs = 0;
  params.temperature = 0.5;
  params.top_k = 1;
  params.frequency_penalty = 1.0;
  CHECK(answer(params, 1)[0].logprob == plain.logprob);
}

TEST_CASE("parameters that mean nothing are refused") {
  SamplingParams params;
  params.temperature = -1;
  CHECK(first_engine().make_sampler(params, {}, 0).status().code() == ErrorCode::kInvalidArgument);
  params = {};
  params.logit_bias = {{first_engine().model().vocab, 1.0f}};
  CHECK(first_engine().make_sampler(params, {}, 0).status().code() == ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem

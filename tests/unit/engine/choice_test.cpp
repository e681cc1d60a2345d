// A choice's history: what penalties, bias and minimum lengths do to logits, and what ends an
// answer.
#include "engine/choice.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <set>

namespace tandem {
namespace {

const VocabFacts kVocab{100, {7, 9}};

std::unique_ptr<Choice> make(const SamplingParams& params, std::vector<TokenId> history = {},
                             int prompt = 0) {
  Result<std::unique_ptr<Choice>> choice = Choice::make(params, kVocab, history, prompt);
  REQUIRE(choice.ok());
  return *std::move(choice);
}

std::set<TokenId> adjusted_tokens(const Choice& choice) {
  std::set<TokenId> tokens;
  choice.for_each_adjusted([&](TokenId token) { CHECK(tokens.insert(token).second); });
  return tokens;
}

TEST_CASE("the repetition penalty covers prompt and output, the others the output only") {
  SamplingParams params;
  params.repetition_penalty = 2.0;
  params.frequency_penalty = 0.5;
  params.presence_penalty = 0.25;
  auto choice = make(params, {1, 2, 2, 3, 3}, 3);  // Prompt 1 2 2, output 3 3
  CHECK(choice->emitted() == 2);
  CHECK(choice->adjusted(1, 4.0f) == 2.0f);
  CHECK(choice->adjusted(2, -4.0f) == -8.0f);
  CHECK(choice->adjusted(3, 4.0f) == 2.0f - 1.0f - 0.25f);
  CHECK(choice->adjusted(4, 4.0f) == 4.0f);
  choice->accept(4);
  CHECK(choice->emitted() == 3);
  CHECK(choice->adjusted(4, 4.0f) == 2.0f - 0.5f - 0.25f);
  CHECK(adjusted_tokens(*choice) == std::set<TokenId>{1, 2, 3, 4});
  CHECK_FALSE(choice->plain());
}

TEST_CASE("a history given at once equals one that grew") {
  SamplingParams params;
  params.frequency_penalty = 0.5;
  params.seed = 5;
  auto grown = make(params, {1, 2}, 2);
  for (const TokenId token : {3, 4, 3}) grown->accept(token);
  auto given = make(params, {1, 2, 3, 4, 3}, 2);
  CHECK(given->emitted() == grown->emitted());
  CHECK(given->next_uniform() == grown->next_uniform());
  for (TokenId token = 0; token < 10; ++token)
    CHECK(given->adjusted(token, 1.0f) == grown->adjusted(token, 1.0f));
}

TEST_CASE("end and stop tokens are suppressed until min_tokens are out") {
  SamplingParams params;
  params.min_tokens = 2;
  params.stop_tokens = {20, 20, 9};
  params.ignore_eos = true;
  auto choice = make(params);
  CHECK(adjusted_tokens(*choice) == std::set<TokenId>{7, 9, 20});
  for (const TokenId token : {7, 9, 20}) CHECK(std::isinf(choice->adjusted(token, 50.0f)));
  choice->accept(1);
  choice->accept(1);
  CHECK(choice->plain());
  CHECK(choice->adjusted(20, 50.0f) == 50.0f);
}

TEST_CASE("ends, stops and ignored ends") {
  SamplingParams params;
  params.stop_tokens = {20};
  auto choice = make(params);
  CHECK(choice->finish_of(7) == FinishReason::kEndOfText);
  CHECK(choice->finish_of(20) == FinishReason::kStopToken);
  CHECK(choice->finish_of(21) == FinishReason::kNone);
  params.ignore_eos = true;
  choice = make(params);
  CHECK(choice->finish_of(7) == FinishReason::kNone);
  CHECK(choice->finish_of(20) == FinishReason::kStopToken);
}

TEST_CASE("bias adds up and comes after penalties") {
  SamplingParams params;
  params.repetition_penalty = 2.0;
  params.logit_bias = {{1, 5.0f}, {1, 1.0f}, {2, -std::numeric_limits<float>::infinity()}};
  auto choice = make(params, {1}, 1);
  CHECK(choice->adjusted(1, 4.0f) == 8.0f);
  CHECK(std::isinf(choice->adjusted(2, 4.0f)));
  CHECK(adjusted_tokens(*choice) == std::set<TokenId>{1, 2});
}

TEST_CASE("parameters and histories out of range are refused") {
  const auto refused = [](const SamplingParams& params, std::vector<TokenId> history = {},
                          int prompt = 0) {
    return Choice::make(params, kVocab, history, prompt).status().code() ==
           ErrorCode::kInvalidArgument;
  };
  SamplingParams params;
  CHECK(refused(params, {100}, 1));
  CHECK(refused(params, {-1}, 1));
  CHECK(refused(params, {1}, 2));
  params.temperature = std::nan("");
  CHECK(refused(params));
  params = {};
  params.temperature = -1;
  CHECK(refused(params));
  params = {};
  params.top_p = 1.5;
  CHECK(refused(params));
  params = {};
  params.repetition_penalty = 0;
  CHECK(refused(params));
  params = {};
  params.logit_bias = {{100, 1.0f}};
  CHECK(refused(params));
}

}  // namespace
}  // namespace tandem

// With several compute threads too, company in the batch changes nothing. The library divides a
// lone token's attention among threads once its context has 512 tokens, so the prompt is longer
// than that.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "engine/chunk_grid.h"
#include "engine/engine.h"

namespace tandem {
namespace {

constexpr int kPrompt = 600;
constexpr int kSteps = 4;

SeqId prefilled(Engine& engine, const std::vector<TokenId>& prompt) {
  const SeqId sequence = *engine.open();
  for (const Chunk& chunk : chunk_grid(kPrompt, 0, engine.model().chunk_tokens, 1)) {
    const auto part = std::span(prompt).subspan(static_cast<size_t>(chunk.first),
                                                static_cast<size_t>(chunk.count));
    REQUIRE(engine.prefill(sequence, part, chunk.first, true, nullptr).ok());
  }
  return sequence;
}

TEST_CASE("two threads give a sequence the same tokens alone and in company") {
  Config config;
  config.model.path = "models/smollm2-135m-instruct-q4_0.gguf";
  config.model.context = 1024;
  if (!std::filesystem::exists(config.model.path)) {
    std::cout << "skipped: " << config.model.path << " is not there, run scripts/setup.sh\n";
    std::exit(77);
  }
  Result<std::unique_ptr<Engine>> made = make_engine(config, 2, 2);
  REQUIRE_MESSAGE(made.ok(), made.status().to_string());
  Engine& engine = **made;
  std::vector<TokenId> prompt;
  for (int i = 0; i < kPrompt; ++i) prompt.push_back(1000 + i * 37 % 20000);
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.logprobs = 20;

  std::vector<std::vector<SampledToken>> answers;
  for (const bool company : {false, true}) {
    const SeqId neighbour = prefilled(engine, prompt);
    const SeqId sequence = prefilled(engine, prompt);
    auto sampler = *engine.make_sampler(params, prompt, kPrompt);
    SampledToken token = *engine.sample(sequence, *sampler);
    std::vector<SampledToken> answer;
    for (int i = 0; i < kSteps; ++i) {
      std::vector<DecodeInput> inputs = {{sequence, token.token, kPrompt + i}};
      if (company) inputs.push_back({neighbour, 1234 + i, kPrompt + i});
      REQUIRE(engine.decode(inputs).ok());
      answer.push_back(token = *engine.sample(sequence, *sampler));
    }
    answers.push_back(answer);
    engine.close(neighbour);
    engine.close(sequence);
  }
  for (size_t i = 0; i < kSteps; ++i) {
    CHECK(answers[0][i].token == answers[1][i].token);
    CHECK(answers[0][i].top == answers[1][i].top);
  }
}

}  // namespace
}  // namespace tandem

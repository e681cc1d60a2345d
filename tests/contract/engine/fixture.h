// What the suite is written in: two engines of the subject (as two workers have them), prompts, and
// runs whose every sampled token is kept with its 20 best log-probabilities, so that equal means
// equal to the last bit.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/chunk_grid.h"
#include "engine/engine.h"
#include "engine/tokenizer.h"

namespace tandem {

inline constexpr int kSlots = 10;

Engine& first_engine();
Engine& second_engine();
const Tokenizer& subject_tokenizer();

// Text-like tokens, different for every `salt`.
std::vector<TokenId> make_prompt(int count, uint64_t salt = 0);
TokenId end_token();

SamplingParams greedy();
SamplingParams sampled(uint64_t seed);

// Equal tokens, finishes and log-probabilities.
bool same(const std::vector<SampledToken>& a, const std::vector<SampledToken>& b);
std::vector<TokenId> ids(const std::vector<SampledToken>& tokens);

// Copies rows as they are announced.
class RowCopies final : public KvObserver {
 public:
  struct Unit {
    int layer = 0;
    int first = 0;
    int count = 0;
    std::vector<std::byte> key;
    std::vector<std::byte> value;
  };
  void on_layer(const LayerRows& rows) override;
  std::vector<Unit> units;
};

// One open sequence and its choice; closes itself.
class Run {
 public:
  Run(Engine& engine, std::vector<TokenId> prompt, const SamplingParams& params,
      std::vector<TokenId> emitted = {});
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // The prompt on the chunk grid, then the emitted tokens as a replay.
  void prefill(KvObserver* observer = nullptr);
  // Reserves the whole prompt and imports what `rows` copied, leaving out what no later token
  // reaches.
  void import(const RowCopies& rows);
  SampledToken sample();
  // Samples and decodes until `count` tokens are out, the first from the logits that are there.
  std::vector<SampledToken> generate(int count);
  DecodeInput next_input() const;
  // Another worker sampled this token.
  void accept(TokenId token);

  Engine& engine;
  const SeqId sequence;
  std::vector<TokenId> tokens;  // Prompt and output
  const int prompt_count;
  int length = 0;  // Positions that the engine holds
  std::unique_ptr<Sampler> sampler;
};

}  // namespace tandem

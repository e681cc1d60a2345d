#include "tests/contract/engine/fixture.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "common/random.h"
#include "tests/contract/engine/subject.h"

namespace tandem {

namespace {

void skip_without_model(const Config& config) {
  if (config.model.engine != "llama" || std::filesystem::exists(config.model.path)) return;
  std::cout << "skipped: " << config.model.path << " is not there, run scripts/setup.sh\n";
  std::exit(77);
}

std::unique_ptr<Engine> start() {
  skip_without_model(subject_config());
  Result<std::unique_ptr<Engine>> engine = make_engine(subject_config(), kSlots, 1);
  REQUIRE_MESSAGE(engine.ok(), engine.status().to_string());
  return *std::move(engine);
}

SeqId open(Engine& engine) {
  const Result<SeqId> sequence = engine.open();
  REQUIRE(sequence.ok());
  return *sequence;
}

}  // namespace

Engine& first_engine() {
  static const std::unique_ptr<Engine> engine = start();
  return *engine;
}

Engine& second_engine() {
  static const std::unique_ptr<Engine> engine = start();
  return *engine;
}

const Tokenizer& subject_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    skip_without_model(subject_config());
    Result<std::unique_ptr<Tokenizer>> made = make_tokenizer(subject_config());
    REQUIRE(made.ok());
    return *std::move(made);
  }();
  return *tokenizer;
}

std::vector<TokenId> make_prompt(int count, uint64_t salt) {
  static const std::vector<std::string> kWords = {"the",  "river", "and",  "a",     "stone",
                                                  "was",  "over",  "city", "light", "under",
                                                  "many", "seven", "then", "slowly"};
  std::string text = "Story " + std::to_string(salt) + ":";
  std::vector<TokenId> tokens;
  for (uint64_t i = 0; static_cast<int>(tokens.size()) < count; ++i) {
    for (int j = 0; j < 40; ++j, ++i)
      text += " " + kWords[counter_random(salt + 1, i) % kWords.size()];
    tokens = *subject_tokenizer().encode(text, true, false);
  }
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

TokenId end_token() {
  for (TokenId token = 0; token < subject_tokenizer().vocab(); ++token) {
    if (subject_tokenizer().is_end(token)) return token;
  }
  FAIL("the vocabulary has no end token");
  return 0;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.logprobs = 20;
  return params;
}

SamplingParams sampled(uint64_t seed) {
  SamplingParams params = greedy();
  params.temperature = 0.9;
  params.seed = seed;
  return params;
}

bool same(const std::vector<SampledToken>& a, const std::vector<SampledToken>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const SampledToken& x, const SampledToken& y) {
                      return x.token == y.token && x.finish == y.finish && x.logprob == y.logprob &&
                             x.top == y.top;
                    });
}

std::vector<TokenId> ids(const std::vector<SampledToken>& tokens) {
  std::vector<TokenId> out;
  for (const SampledToken& token : tokens) out.push_back(token.token);
  return out;
}

void RowCopies::on_layer(const LayerRows& rows) {
  units.push_back({rows.layer,
                   rows.first,
                   rows.count,
                   {rows.key.begin(), rows.key.end()},
                   {rows.value.begin(), rows.value.end()}});
}

Run::Run(Engine& on, std::vector<TokenId> prompt, const SamplingParams& params,
         std::vector<TokenId> emitted)
    : engine(on),
      sequence(open(on)),
      tokens(std::move(prompt)),
      prompt_count(static_cast<int>(tokens.size())) {
  tokens.insert(tokens.end(), emitted.begin(), emitted.end());
  Result<std::unique_ptr<Sampler>> made = engine.make_sampler(params, tokens, prompt_count);
  REQUIRE_MESSAGE(made.ok(), made.status().to_string());
  sampler = *std::move(made);
}

Run::~Run() { engine.close(sequence); }

void Run::prefill(KvObserver* observer) {
  const int total = static_cast<int>(tokens.size());
  for (const Chunk& chunk :
       chunk_grid(prompt_count, total - prompt_count, engine.model().chunk_tokens,
                  engine.model().exact_batch_max)) {
    const auto part = std::span(tokens).subspan(static_cast<size_t>(chunk.first),
                                                static_cast<size_t>(chunk.count));
    const Status status =
        engine.prefill(sequence, part, chunk.first, chunk.first + chunk.count == total, observer);
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  }
  length = total;
}

void Run::import(const RowCopies& rows) {
  for (int first = 0; first < prompt_count; first += engine.reserve_slice()) {
    REQUIRE(engine.reserve(sequence, first, std::min(engine.reserve_slice(), prompt_count - first))
                .ok());
  }
  for (const RowCopies::Unit& unit : rows.units) {
    const KvLayout::Layer& layer = engine.kv_layout().layers[static_cast<size_t>(unit.layer)];
    const int begin =
        layer.window == 0 ? unit.first : std::max(unit.first, prompt_count - layer.window);
    const int end = unit.first + unit.count;
    if (begin >= end) continue;
    const auto skip = static_cast<size_t>(begin - unit.first);
    const auto put = [&](KvPart part, const std::vector<std::byte>& bytes) {
      const Status status =
          engine.import_rows(sequence, unit.layer, part, begin, end - begin,
                             std::span(bytes).subspan(skip * layer.row_bytes(part)));
      REQUIRE_MESSAGE(status.ok(), status.to_string());
    };
    put(KvPart::kKey, unit.key);
    put(KvPart::kValue, unit.value);
  }
  length = prompt_count;
}

SampledToken Run::sample() {
  Result<SampledToken> token = engine.sample(sequence, *sampler);
  REQUIRE_MESSAGE(token.ok(), token.status().to_string());
  tokens.push_back(token->token);
  return *std::move(token);
}

std::vector<SampledToken> Run::generate(int count) {
  std::vector<SampledToken> out;
  while (true) {
    // A token that was sampled but not yet run goes first: there are no logits without it.
    if (length < static_cast<int>(tokens.size())) {
      const DecodeInput input = next_input();
      const Status status = engine.decode(std::span(&input, 1));
      REQUIRE_MESSAGE(status.ok(), status.to_string());
      ++length;
    }
    if (static_cast<int>(out.size()) == count) return out;
    out.push_back(sample());
  }
}

DecodeInput Run::next_input() const {
  return {sequence, tokens.back(), static_cast<int>(tokens.size()) - 1};
}

void Run::accept(TokenId token) {
  sampler->accept(token);
  tokens.push_back(token);
}

}  // namespace tandem

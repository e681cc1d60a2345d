// What only the sim engine promises: time from its cost model, layers spread over it, bounded
// memory, readable text, and answers that notice a single wrong byte.
#include "engine/sim/sim_engine.h"

#include <doctest/doctest.h>

#include <cctype>
#include <chrono>

#include "common/clock.h"
#include "engine/sim/sim_tokenizer.h"

namespace tandem {
namespace {

Config sim_config() {
  Config config;
  config.model.engine = "sim";
  config.model.context = 4096;
  config.sim.layers = 4;
  config.sim.kv_bytes_per_token = 512;
  config.sim.prefill_base_ms = config.sim.prefill_per_token_us = config.sim.prefill_per_token2_us =
      0;
  config.sim.decode_base_ms = config.sim.decode_per_sequence_ms = config.sim.decode_per_context_us =
      0;
  return config;
}

std::unique_ptr<Engine> start(const Config& config, int slots = 4) {
  Result<std::unique_ptr<Engine>> engine = make_engine(config, slots, 1);
  REQUIRE(engine.ok());
  return *std::move(engine);
}

std::vector<TokenId> tokens(int count) {
  std::vector<TokenId> made;
  for (int i = 0; i < count; ++i) made.push_back('a' + i % 26);
  return made;
}

double elapsed_ms(TimePoint since) { return to_ms(SystemClock::get().now() - since); }

class LayerTimes final : public KvObserver {
 public:
  void on_layer(const LayerRows& rows) override {
    at_ms.push_back(elapsed_ms(begin));
    CHECK(rows.layer == static_cast<int>(at_ms.size()) - 1);
  }
  TimePoint begin = SystemClock::get().now();
  std::vector<double> at_ms;
};

TEST_CASE("a chunk takes what the cost model says, and its layers come one after the other") {
  Config config = sim_config();
  config.sim.prefill_base_ms = 20;
  config.sim.prefill_per_token_us = 500;
  config.sim.prefill_per_token2_us = 2;
  auto engine = start(config);
  const SeqId sequence = *engine->open();
  REQUIRE(engine->prefill(sequence, tokens(100), 0, false, nullptr).ok());  // 20 + 50 + 20 ms
  LayerTimes times;
  REQUIRE(engine->prefill(sequence, tokens(100), 100, false, &times).ok());  // 20 + 50 + 60 ms
  const double total = elapsed_ms(times.begin);
  CHECK(total >= 130);
  REQUIRE(times.at_ms.size() == 4);
  for (size_t i = 0; i < 4; ++i) CHECK(times.at_ms[i] >= 130.0 * static_cast<double>(i) / 4);
}

TEST_CASE("a decode step costs its base, its sequences and their contexts") {
  Config config = sim_config();
  config.sim.decode_base_ms = 20;
  config.sim.decode_per_sequence_ms = 5;
  config.sim.decode_per_context_us = 100;
  auto engine = start(config);
  std::vector<DecodeInput> inputs;
  for (int i = 0; i < 2; ++i) {
    const SeqId sequence = *engine->open();
    REQUIRE(engine->prefill(sequence, tokens(99), 0, false, nullptr).ok());
    inputs.push_back({sequence, 'x', 99});
  }
  const TimePoint begin = SystemClock::get().now();
  REQUIRE(engine->decode(inputs).ok());
  CHECK(elapsed_ms(begin) >= 20 + 10 + 20);
}

TEST_CASE("one wrong byte in one row changes the answer") {
  auto engine = start(sim_config());
  const SeqId source = *engine->open();
  REQUIRE(engine->prefill(source, tokens(70), 0, true, nullptr).ok());
  const auto answer = [&](int bad_layer, size_t bad_byte) {
    const SeqId copy = *engine->open();
    REQUIRE(engine->reserve(copy, 0, 70).ok());
    for (int layer = 0; layer < 4; ++layer) {
      for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
        std::vector<std::byte> rows(70 * engine->kv_layout().layers[0].row_bytes(part));
        REQUIRE(engine->export_rows(source, layer, part, 0, 70, rows).ok());
        if (layer == bad_layer && part == KvPart::kValue) rows[bad_byte] ^= std::byte{1};
        REQUIRE(engine->import_rows(copy, layer, part, 0, 70, rows).ok());
      }
    }
    std::vector<TokenId> history = tokens(70);
    SamplingParams params;
    params.temperature = 0;
    params.ignore_eos = true;
    auto sampler = *engine->make_sampler(params, history, 70);
    std::vector<TokenId> out;
    TokenId token = 'q';
    for (int i = 0; i < 8; ++i) {
      const DecodeInput input{copy, token, 70 + i};
      REQUIRE(engine->decode(std::span(&input, 1)).ok());
      out.push_back(token = engine->sample(copy, *sampler)->token);
    }
    engine->close(copy);
    return out;
  };
  const std::vector<TokenId> right = answer(-1, 0);
  CHECK(answer(-1, 0) == right);
  const size_t last = 70 * engine->kv_layout().layers[0].value_row_bytes - 1;
  CHECK(answer(0, 0) != right);
  CHECK(answer(3, last) != right);
  CHECK(answer(2, last / 2) != right);
}

TEST_CASE("output is words of letters, and texts end by themselves now and then") {
  auto engine = start(sim_config());
  auto tokenizer = *make_tokenizer(sim_config());
  SamplingParams params;
  params.temperature = 1;
  int ends = 0;
  for (int text = 0; text < 20; ++text) {
    params.seed = static_cast<uint64_t>(text);
    const SeqId sequence = *engine->open();
    const std::vector<TokenId> prompt = tokens(10 + text);
    REQUIRE(engine->prefill(sequence, prompt, 0, true, nullptr).ok());
    auto sampler = *engine->make_sampler(params, prompt, static_cast<int>(prompt.size()));
    for (int i = 0; i < 200; ++i) {
      const SampledToken sampled = *engine->sample(sequence, *sampler);
      if (sampled.finish == FinishReason::kEndOfText) {
        ++ends;
        break;
      }
      const std::string piece = tokenizer->piece(sampled.token, false);
      REQUIRE(piece.size() >= 3);
      REQUIRE(piece[0] == ' ');
      for (const char letter : piece.substr(1))
        REQUIRE(std::islower(static_cast<unsigned char>(letter)));
      const DecodeInput input{sequence, sampled.token, static_cast<int>(prompt.size()) + i};
      REQUIRE(engine->decode(std::span(&input, 1)).ok());
    }
    engine->close(sequence);
  }
  CHECK(ends >= 1);
  CHECK(ends <= 19);
}

TEST_CASE("sixteen engines of sixteen slots live in one process") {
  std::vector<std::unique_ptr<Engine>> engines;
  for (int i = 0; i < 16; ++i) {
    engines.push_back(start(sim_config(), 16));
    for (int slot = 0; slot < 16; ++slot) {
      const SeqId sequence = *engines.back()->open();
      REQUIRE(engines.back()->prefill(sequence, tokens(64), 0, true, nullptr).ok());
    }
  }
  CHECK(engines.size() == 16);
}

TEST_CASE("an abort that came before the chunk stops it too, until it is cleared") {
  Config config = sim_config();
  config.sim.prefill_base_ms = 60000;
  auto engine = start(config);
  engine->request_abort();
  const SeqId sequence = *engine->open();
  CHECK(engine->prefill(sequence, tokens(64), 0, true, nullptr).code() == ErrorCode::kCancelled);
  CHECK(engine->prefill(sequence, tokens(64), 0, true, nullptr).code() ==
        ErrorCode::kFailedPrecondition);
  engine->close(sequence);
}

}  // namespace
}  // namespace tandem

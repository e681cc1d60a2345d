// Sequences come and go: ids, limits, aborts, wrong calls, and what an engine says about itself.
#include <doctest/doctest.h>

#include <latch>
#include <thread>

#include "tests/contract/engine/fixture.h"

namespace tandem {
namespace {

TEST_CASE("the lowest free id is handed out, and none beyond the last") {
  Engine& engine = first_engine();
  REQUIRE(engine.sequences_max() == kSlots);
  for (int i = 0; i < kSlots; ++i) CHECK(engine.open()->value == i);
  CHECK(engine.open().status().code() == ErrorCode::kResourceExhausted);
  engine.close(SeqId{4});
  engine.close(SeqId{2});
  CHECK(engine.open()->value == 2);
  CHECK(engine.open()->value == 4);
  for (int i = 0; i < kSlots; ++i) engine.close(SeqId{i});
}

TEST_CASE("a reopened sequence remembers nothing") {
  const std::vector<TokenId> prompt = make_prompt(70, 31);
  const auto run = [&] {
    Run fresh(first_engine(), prompt, greedy());
    fresh.prefill();
    return fresh.generate(4);
  };
  const std::vector<SampledToken> expected = run();
  {
    Run other(first_engine(), make_prompt(500, 32), greedy());
    other.prefill();
    other.generate(3);
  }
  CHECK(same(run(), expected));
}

// Tells a latch when the second layer is there.
class Signal final : public KvObserver {
 public:
  explicit Signal(std::latch& reached) : reached_(reached) {}
  void on_layer(const LayerRows& rows) override {
    if (rows.layer == 1) reached_.count_down();
  }

 private:
  std::latch& reached_;
};

TEST_CASE("an abort ends a chunk inside, and the engine goes on") {
  Engine& engine = first_engine();
  const std::vector<TokenId> prompt = make_prompt(256, 33);
  std::latch reached(1);
  Signal signal(reached);
  std::thread stopper([&] {
    reached.wait();
    engine.request_abort();
  });
  const SeqId sequence = *engine.open();
  const Status status = engine.prefill(sequence, prompt, 0, true, &signal);
  stopper.join();
  engine.clear_abort();
  CHECK(status.code() == ErrorCode::kCancelled);
  CHECK(engine.prefill(sequence, prompt, 0, true, nullptr).code() ==
        ErrorCode::kFailedPrecondition);
  engine.close(sequence);

  Run after(engine, prompt, greedy());
  after.prefill();
  Run elsewhere(second_engine(), prompt, greedy());
  elsewhere.prefill();
  CHECK(same(after.generate(3), elsewhere.generate(3)));
}

TEST_CASE("an abort leaves other sequences as they were") {
  Engine& engine = first_engine();
  const std::vector<TokenId> prompt = make_prompt(90, 34);
  Run expected(second_engine(), prompt, greedy());
  expected.prefill();
  Run bystander(engine, prompt, greedy());
  bystander.prefill();
  std::vector<SampledToken> got = bystander.generate(1);
  got.push_back(bystander.sample());
  engine.request_abort();
  const SeqId victim = *engine.open();
  CHECK(engine.prefill(victim, make_prompt(256, 35), 0, true, nullptr).code() ==
        ErrorCode::kCancelled);
  engine.close(victim);
  engine.clear_abort();
  for (SampledToken& token : bystander.generate(2)) got.push_back(std::move(token));
  CHECK(same(got, expected.generate(4)));
}

TEST_CASE("wrong calls are refused and change nothing") {
  Engine& engine = first_engine();
  Run run(engine, make_prompt(70, 36), greedy());
  run.prefill();
  const SeqId sequence = run.sequence;
  const std::vector<TokenId> one = {run.tokens[0]};
  const std::vector<TokenId> outside = {engine.model().vocab};
  CHECK(engine.prefill(sequence, one, 69, true, nullptr).code() == ErrorCode::kInvalidArgument);
  CHECK(engine.prefill(sequence, one, 71, true, nullptr).code() == ErrorCode::kInvalidArgument);
  CHECK(engine.prefill(sequence, outside, 70, true, nullptr).code() == ErrorCode::kInvalidArgument);
  CHECK(engine.reserve(sequence, 69, 1).code() == ErrorCode::kInvalidArgument);
  const std::vector<DecodeInput> twice = {{sequence, 300, 70}, {sequence, 300, 70}};
  CHECK(engine.decode(twice).code() == ErrorCode::kInvalidArgument);
  const DecodeInput gap{sequence, 300, 71};
  CHECK(engine.decode(std::span(&gap, 1)).code() == ErrorCode::kInvalidArgument);
  std::vector<std::byte> row(engine.kv_layout().layers[0].key_row_bytes);
  CHECK(engine.import_rows(sequence, 0, KvPart::kKey, 70, 1, row).code() ==
        ErrorCode::kInvalidArgument);
  CHECK(engine.export_rows(sequence, 0, KvPart::kKey, 70, 1, row).code() ==
        ErrorCode::kInvalidArgument);
  CHECK(engine.export_rows(sequence, 0, KvPart::kKey, 0, 2, row).code() ==
        ErrorCode::kInvalidArgument);
  CHECK(engine.export_rows(sequence, 10000, KvPart::kKey, 0, 1, row).code() ==
        ErrorCode::kInvalidArgument);
  CHECK(engine.decode({}).ok());
  CHECK(engine.sample(sequence, *run.sampler).ok());
}

TEST_CASE("a sequence without logits cannot be sampled") {
  Run run(first_engine(), make_prompt(70, 37), greedy());
  CHECK(first_engine().sample(run.sequence, *run.sampler).status().code() ==
        ErrorCode::kFailedPrecondition);
  REQUIRE(first_engine().prefill(run.sequence, run.tokens, 0, false, nullptr).ok());
  CHECK(first_engine().sample(run.sequence, *run.sampler).status().code() ==
        ErrorCode::kFailedPrecondition);
}

TEST_CASE("a sequence is refused beyond its context and runs up to it") {
  Engine& engine = first_engine();
  const int context = engine.model().context;
  const SeqId sequence = *engine.open();
  for (int first = 0; first < context - 1; first += 100) {
    REQUIRE(engine.reserve(sequence, first, std::min(100, context - 1 - first)).ok());
  }
  const std::vector<TokenId> two = {300, 301};
  CHECK(engine.prefill(sequence, two, context - 1, true, nullptr).code() ==
        ErrorCode::kResourceExhausted);
  const DecodeInput last{sequence, 300, context - 1};
  CHECK(engine.decode(std::span(&last, 1)).ok());
  const DecodeInput beyond{sequence, 300, context};
  CHECK(engine.decode(std::span(&beyond, 1)).code() == ErrorCode::kResourceExhausted);
  engine.close(sequence);
}

TEST_CASE("two engines of one model agree about everything that peers compare") {
  const ModelInfo& a = first_engine().model();
  const ModelInfo& b = second_engine().model();
  CHECK(a.digest == b.digest);
  CHECK(a.digest.size() == 32);
  CHECK(a.tokenizer_digest == subject_tokenizer().digest());
  CHECK(a.vocab == subject_tokenizer().vocab());
  CHECK(a.exact_batch_max == b.exact_batch_max);
  CHECK(a.exact_batch_max >= 1);
  CHECK(a.exact_batch_max < kChunkTokensMin);
  CHECK(first_engine().kv_layout().digest() == second_engine().kv_layout().digest());
  CHECK(first_engine().kv_layout().bytes_per_token() > 0);
  CHECK(first_engine().reserve_slice() >= 64);
}

TEST_CASE("a sibling computes beside its origin, each as if alone, in whatever size") {
  const std::vector<TokenId> prompt = make_prompt(300, 77);
  const auto answer = [&](Engine& engine) {
    Run run(engine, prompt, sampled(5));
    run.prefill();
    return run.generate(12);
  };
  const std::vector<SampledToken> alone = answer(first_engine());
  Result<std::unique_ptr<Engine>> sibling = first_engine().make_sibling(2, 1);
  REQUIRE_MESSAGE(sibling.ok(), sibling.status().to_string());
  CHECK((*sibling)->sequences_max() == 2);
  CHECK((*sibling)->kv_layout().digest() == first_engine().kv_layout().digest());
  CHECK((*sibling)->model().digest == first_engine().model().digest);

  std::vector<SampledToken> beside;
  std::thread other([&] { beside = answer(**sibling); });
  const std::vector<SampledToken> here = answer(first_engine());
  other.join();
  CHECK(same(here, alone));
  CHECK(same(beside, alone));

  for (const int slots : {5, 1}) {
    REQUIRE((*sibling)->resize(slots, 1).ok());
    CHECK((*sibling)->sequences_max() == slots);
    CHECK(same(answer(**sibling), alone));
  }
}

}  // namespace
}  // namespace tandem

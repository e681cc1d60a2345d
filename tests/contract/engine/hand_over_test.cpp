// A sequence that moved, was replayed or ran in company continues exactly as if it had not.
#include <doctest/doctest.h>

#include "tests/contract/engine/fixture.h"

namespace tandem {
namespace {

// One prompt: its rows as an observer saw them go to the second engine, and both continue.
void check_hand_over(int length, const SamplingParams& params, int more) {
  CAPTURE(length);
  const std::vector<TokenId> prompt = make_prompt(length, static_cast<uint64_t>(length));
  Run source(first_engine(), prompt, params);
  RowCopies rows;
  source.prefill(&rows);
  const SampledToken first = source.sample();

  Run target(second_engine(), prompt, params);
  target.import(rows);
  target.accept(first.token);
  CHECK(same(target.generate(more), source.generate(more)));
}

TEST_CASE("a hand-over is exact for prompts of every length around the chunk borders") {
  const int chunk = first_engine().model().chunk_tokens;
  for (const int length : {1, 2, 63, 64, 65, chunk - 1, chunk, chunk + 1, chunk + 63, chunk + 64,
                           chunk + 65, 2 * chunk + 63, 2 * chunk + 64}) {
    check_hand_over(length, greedy(), 5);
  }
}

TEST_CASE(
    "a long hand-over is exact although rows outside the windows hold another sequence's old "
    "values") {
  {
    Run other(second_engine(), make_prompt(900, 77), greedy());
    other.prefill();
  }
  check_hand_over(800, greedy(), 24);
}

TEST_CASE("a sampled answer with penalties survives the hand-over") {
  SamplingParams params = sampled(42);
  params.repetition_penalty = 1.2;
  params.frequency_penalty = 0.3;
  params.presence_penalty = 0.2;
  params.top_p = 0.95;
  params.top_k = 40;
  params.min_p = 0.01;
  check_hand_over(150, params, 24);
}

TEST_CASE("the observer sees every layer of every chunk once, in order, and changes nothing") {
  const std::vector<TokenId> prompt = make_prompt(330, 3);
  RowCopies rows;
  Run watched(first_engine(), prompt, greedy());
  watched.prefill(&rows);
  const auto layers = static_cast<int>(first_engine().kv_layout().layers.size());
  const std::vector<Chunk> grid = chunk_grid(330, 0, first_engine().model().chunk_tokens, 1);
  REQUIRE(rows.units.size() == grid.size() * static_cast<size_t>(layers));
  for (size_t i = 0; i < rows.units.size(); ++i) {
    const Chunk& chunk = grid[i / static_cast<size_t>(layers)];
    CHECK(rows.units[i].layer == static_cast<int>(i) % layers);
    CHECK(rows.units[i].first == chunk.first);
    CHECK(rows.units[i].count == chunk.count);
  }
  // What was announced is what lies there in the end.
  const KvLayout::Layer& layer = first_engine().kv_layout().layers.back();
  std::vector<std::byte> value(static_cast<size_t>(grid[0].count) * layer.value_row_bytes);
  REQUIRE(first_engine()
              .export_rows(watched.sequence, layers - 1, KvPart::kValue, 0, grid[0].count, value)
              .ok());
  CHECK(value == rows.units[static_cast<size_t>(layers) - 1].value);

  const std::vector<SampledToken> expected = watched.generate(3);
  Run unwatched(first_engine(), prompt, greedy());
  unwatched.prefill();
  CHECK(same(unwatched.generate(3), expected));
}

TEST_CASE("a missing layer changes the answer") {
  const std::vector<TokenId> prompt = make_prompt(100, 4);
  RowCopies rows;
  Run source(first_engine(), prompt, greedy());
  source.prefill(&rows);
  const SampledToken first = source.sample();
  std::fill(rows.units[1].key.begin(), rows.units[1].key.end(), std::byte{0});
  Run target(second_engine(), prompt, greedy());
  target.import(rows);
  target.accept(first.token);
  CHECK_FALSE(same(target.generate(4), source.generate(4)));
}

TEST_CASE("emitted tokens are replayed exactly, seeds and penalties included") {
  const int exact = first_engine().model().exact_batch_max;
  for (const int emitted : {1, exact, exact + 1, 70}) {
    CAPTURE(emitted);
    SamplingParams params = sampled(7);
    params.frequency_penalty = 0.4;
    params.repetition_penalty = 1.1;
    const std::vector<TokenId> prompt = make_prompt(90, 5);
    Run original(first_engine(), prompt, params);
    original.prefill();
    const std::vector<TokenId> said = ids(original.generate(emitted));
    Run resumed(second_engine(), prompt, params, said);
    resumed.prefill();
    CHECK(resumed.sampler->emitted() == emitted);
    CHECK(same(resumed.generate(8), original.generate(8)));
  }
}

TEST_CASE("company in the batch never changes a sequence's tokens") {
  constexpr int kRuns = kSlots - 1;
  std::vector<std::vector<SampledToken>> alone;
  const auto prompt = [](int i) {
    return make_prompt(20 + 30 * i, static_cast<uint64_t>(100 + i));
  };
  for (int i = 0; i < kRuns; ++i) {
    Run run(first_engine(), prompt(i), sampled(static_cast<uint64_t>(i)));
    run.prefill();
    alone.push_back(run.generate(7));
  }
  std::vector<std::unique_ptr<Run>> runs;
  std::vector<std::vector<SampledToken>> together(kRuns);
  for (int i = 0; i < kRuns; ++i) {
    runs.push_back(
        std::make_unique<Run>(first_engine(), prompt(i), sampled(static_cast<uint64_t>(i))));
    runs.back()->prefill();
    together[static_cast<size_t>(i)].push_back(runs.back()->sample());
  }
  // Steps with all, with holes in the ids, and in any order of inputs.
  for (int step = 0; step < 12; ++step) {
    std::vector<DecodeInput> inputs;
    std::vector<int> members;
    for (int i = kRuns - 1; i >= 0; --i) {
      if (together[static_cast<size_t>(i)].size() == 7 || (step % 3 == 1 && i % 2 == 1)) continue;
      inputs.push_back(runs[static_cast<size_t>(i)]->next_input());
      members.push_back(i);
    }
    if (inputs.empty()) continue;
    const Status status = first_engine().decode(inputs);
    REQUIRE_MESSAGE(status.ok(), status.to_string());
    for (const int i : members)
      together[static_cast<size_t>(i)].push_back(runs[static_cast<size_t>(i)]->sample());
  }
  for (size_t i = 0; i < kRuns; ++i) {
    CAPTURE(i);
    CHECK(same(together[i], alone[i]));
  }
}

TEST_CASE("reserving for one sequence between another's steps writes nothing and disturbs nobody") {
  const std::vector<TokenId> prompt = make_prompt(80, 9);
  Run plain(first_engine(), prompt, greedy());
  plain.prefill();
  const std::vector<SampledToken> expected = plain.generate(6);

  Run disturbed(first_engine(), prompt, greedy());
  disturbed.prefill();
  Run newcomer(first_engine(), make_prompt(600, 10), greedy());
  std::vector<SampledToken> got;
  got.push_back(disturbed.sample());
  for (int i = 0; i < 5; ++i) {
    REQUIRE(first_engine().reserve(newcomer.sequence, i * 100, 100).ok());
    const DecodeInput input = disturbed.next_input();
    REQUIRE(first_engine().decode(std::span(&input, 1)).ok());
    got.push_back(disturbed.sample());
  }
  CHECK(same(got, expected));
}

}  // namespace
}  // namespace tandem

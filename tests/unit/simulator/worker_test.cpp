// One simulated worker: its steps take what the cost formulas say, its batch grows and shrinks as
// it should, and nothing is lost when its KV memory is full.
#include "simulator/worker.h"

#include <doctest/doctest.h>

#include <map>

using namespace tandem;
using namespace tandem::simulator;

namespace {

scheduler::CostParameters costs() {
  scheduler::CostParameters c;
  c.prefill_base_ms = 5;
  c.prefill_per_token_us = 20;
  c.prefill_per_token2_us = 1e-3;
  c.decode = {10, 0.05, 0.1};
  c.chunk_overhead_tokens = 128;
  c.kv_tokens_capacity = 100'000;
  return c;
}

WorkerSpec spec(Role role) {
  WorkerSpec s;
  s.name = "w";
  s.role = role;
  s.costs = costs();
  return s;
}

Sequence sequence(int request, int context, int tokens) {
  return {.id = {request, 0},
          .emitted = 1,
          .output_tokens = tokens,
          .context = context,
          .first_token_s = 0,
          .tpot_ms = 50};
}

PromptJob prompt(int request, int tokens, bool local) {
  return {.id = {request, 0}, .tokens = tokens, .blocks = {}, .local = local};
}

// Runs until there is nothing to do; the time at which each request's part ended.
std::map<int, double> run(Worker& worker, double& now_s) {
  std::map<int, double> ends;
  for (;;) {
    const auto step = worker.begin_step(now_s);
    if (!step) {
      const auto wake = worker.wake_s(now_s);
      if (!wake) return ends;
      now_s = *wake + 1e-9;
      continue;
    }
    now_s += step->seconds;
    StepEnd end;
    worker.end_step(now_s, end);
    for (const PromptJob& job : end.prompts) ends[job.id.request] = now_s;
    for (const Sequence& ended : end.sequences) ends[ended.id.request] = now_s;
  }
}

}  // namespace

TEST_CASE("a prefill worker computes prompts one after the other, in T_p each") {
  Worker worker(0, spec(Role::kPrefill), 50, false);
  double now_s = 0;
  worker.add_prompt(prompt(1, 1000, false), now_s);
  worker.add_prompt(prompt(2, 2000, false), now_s);
  auto ends = run(worker, now_s);
  // 5 + 20 us x 1000 + 1e-3 us x 1000^2 = 26 ms; 5 + 40 + 4 = 49 ms.
  CHECK(ends[1] == doctest::Approx(0.026));
  CHECK(ends[2] == doctest::Approx(0.026 + 0.049));
}

TEST_CASE("a decode worker's step takes T_d of its batch and context") {
  Worker worker(0, spec(Role::kDecode), 50, true);
  worker.join(sequence(1, 1000, 3));  // Two tokens are left
  worker.join(sequence(2, 500, 2));
  double now_s = 0;
  auto ends = run(worker, now_s);
  // 10 + 2 x .05 + .1 us x 1500 = 10.25 ms; then one sequence with 1001 tokens: 10.1501 ms.
  CHECK(ends[2] == doctest::Approx(0.01025));
  CHECK(ends[1] == doctest::Approx(0.0204001));
  CHECK(worker.stretches().size() == 2);
}

TEST_CASE("a mixed step takes T_m, and a chunk's size counts the decoding tokens") {
  WorkerSpec s = spec(Role::kCoupled);
  s.chunk_tokens = 1001;
  Worker worker(0, s, 50, false);
  worker.join(sequence(1, 1000, 2));
  worker.add_prompt(prompt(2, 1000, true), 0);
  const auto step = worker.begin_step(0);
  REQUIRE(step);
  // max(10, 20 us x 1001) + .05 + .1 us x 1000 + 1e-3 us x 1000^2 + 128 x 20 us
  CHECK(step->seconds == doctest::Approx((20.02 + 0.05 + 0.1 + 1.0 + 2.56) / 1e3));
}

TEST_CASE("beside decoding sequences a dynamic chunk keeps the step within its target") {
  Worker worker(0, spec(Role::kDecode), 50, false);
  for (int i = 0; i < 10; ++i) worker.join(sequence(i, 1000, 500));
  worker.add_prompt(prompt(100, 8000, true), 0);
  double now_s = 0, longest = 0;
  int steps = 0;
  for (bool computed = false; !computed; ++steps) {
    REQUIRE(steps < 100);
    const auto step = worker.begin_step(now_s);
    REQUIRE(step);
    now_s += step->seconds;
    longest = std::max(longest, step->seconds);
    StepEnd end;
    worker.end_step(now_s, end);
    computed = !end.prompts.empty();
  }
  CHECK(steps > 3);
  CHECK(longest <= 0.0501);
}

TEST_CASE("when the KV memory is full the sequence with most slack is parked, and comes back") {
  WorkerSpec s = spec(Role::kDecode);
  s.costs.kv_tokens_capacity = 2100;
  Worker worker(0, s, 50, false);
  worker.join(sequence(1, 1000, 300));
  Sequence ahead = sequence(2, 1000, 300);
  ahead.tpot_ms = 500;  // Its target is far away
  worker.join(ahead);
  double now_s = 0;
  auto ends = run(worker, now_s);
  CHECK(worker.parked_total() >= 1);
  CHECK(ends.size() == 2);
  CHECK(ends[1] < ends[2]);
  CHECK(worker.report(true).kv_tokens_used == 0);
}

TEST_CASE("a prompt whose prefix was computed here before is only computed behind it") {
  Worker worker(0, spec(Role::kPrefill), 50, false);
  const std::vector<uint64_t> blocks{11, 12, 13};
  double now_s = 0;
  PromptJob first = prompt(1, 3 * 512, false);
  first.blocks = blocks;
  worker.add_prompt(first, now_s);
  run(worker, now_s);
  CHECK(worker.take_cache_events().size() == 3);
  PromptJob second = prompt(2, 3 * 512 + 100, false);
  second.blocks = blocks;
  worker.add_prompt(second, now_s);
  const auto step = worker.begin_step(now_s);
  REQUIRE(step);
  REQUIRE(step->started.size() == 1);
  CHECK(step->started[0].cached == 3 * 512);
  CHECK(step->seconds * 1e3 == doctest::Approx(costs().prefill_ms(3 * 512, 100)));
}

TEST_CASE("a report counts what runs, waits and is on its way") {
  Worker worker(0, spec(Role::kDecode), 50, false);
  worker.join(sequence(1, 1000, 5));
  worker.promise(700);
  worker.add_prompt(prompt(2, 300, true), 0);
  REQUIRE(worker.begin_step(0));
  const scheduler::WorkerState state = worker.report(true);
  CHECK(state.slots_free == state.slots - 3);
  CHECK(state.kv_tokens_used + state.kv_tokens_reserved == 1000 + 700 + 300);
  CHECK(state.prefill_backlog_tokens == 300);
  worker.redeem(700);
  CHECK(worker.report(true).slots_free == state.slots - 2);
}

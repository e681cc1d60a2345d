// Proves the slack policy's rules one by one, each on a handful of workers and a clock that is
// stepped by hand. Workers cost what the profile llama-3-8b-a100 says unless told otherwise.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "scheduler/profiles.h"
#include "scheduler/scheduler.h"

namespace tandem::scheduler {
namespace {

using namespace std::chrono_literals;

// Made at first use: other files' statics are there by then.
const CostParameters& profile_costs() {
  static const CostParameters costs = find_profile("llama-3-8b-a100")->costs;
  return costs;
}

Config config_with(const char* profile = "llama-3-8b-a100") {
  Config config;
  config.scheduler.policy = "slack";
  config.scheduler.profile = profile;
  config.scheduler.prefix_index_bytes = config.scheduler.session_index_bytes = 1 << 20;
  config.model.context = 131072;
  config.engine.chunk_tokens = 1 << 20;  // Prompts run whole: one a0 each
  return config;
}
WorkerState worker(Role role, int slots = 64, int64_t kv_tokens = 400000) {
  return {.role = role, .slots = slots, .slots_free = slots, .kv_tokens_capacity = kv_tokens};
}

struct Bench {
  explicit Bench(const Config& config = config_with()) : scheduler(make_scheduler(config)) {}
  void join(WorkerIndex index, Role role, int slots = 64, int64_t kv_tokens = 400000) {
    scheduler->worker_joined(index, worker(role, slots, kv_tokens));
  }
  std::vector<Decision> poll() { return scheduler->poll(clock.now()); }
  Decision decide(const Request& what) {
    scheduler->submit(++ticket, what, clock.now());
    const std::vector<Decision> decisions = poll();
    REQUIRE(decisions.size() == 1);
    CHECK(decisions[0].ticket == ticket);
    return decisions[0];
  }
  bool waits(const Request& what) {
    scheduler->submit(++ticket, what, clock.now());
    return poll().empty();
  }
  // Sequences that decode on `index`, as its report says.
  void busy(WorkerIndex index, int batch, int64_t kv_tokens, Role role = Role::kDecode) {
    WorkerState state = worker(role);
    state.slots_free = state.slots - batch;
    state.kv_tokens_used = kv_tokens;
    scheduler->worker_updated(index, state);
  }

  ManualClock clock;
  std::unique_ptr<Scheduler> scheduler;
  Ticket ticket = 0;
};

Request request(int prompt_tokens, int max_tokens = 200) {
  return {.prompt_tokens = prompt_tokens, .max_tokens = max_tokens};
}

TEST_CASE("the worked example of docs/scheduling.md gives these numbers") {
  Bench bench;
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kPrefill);
  bench.join(2, Role::kDecode);
  bench.join(3, Role::kDecode);
  bench.busy(2, 20, 30000);
  bench.busy(3, 40, 60000);
  const Decision first = bench.decide(request(4000));
  CHECK(first.prefill == 0);
  // The example: 2,000 tokens, one second after a prompt of 4,000 went to worker 0.
  bench.clock.advance(100ms);
  const Decision decision = bench.decide(request(2000));
  CHECK(decision.path == Path::kRemote);
  CHECK(decision.prefill == 1);
  CHECK(decision.decode == 2);
  CHECK(decision.predicted_ttft_ms == doctest::Approx(143.3).epsilon(0.002));
  CHECK(decision.predicted_ttft_bound_ms == doctest::Approx(1.5 * 143.3).epsilon(0.002));
  CHECK(decision.predicted_tpot_ms == doctest::Approx(16.2).epsilon(0.01));
  // A third finds both busy: worker 0 has 200 ms left of its 295, worker 1 all of its 143.
  const Decision third = bench.decide(request(2000));
  CHECK(third.prefill == 1);
  CHECK(third.predicted_ttft_ms == doctest::Approx(2 * 143.3).epsilon(0.002));
}

TEST_CASE("a prompt that fits one step beside decoding stays on the decode worker") {
  Bench bench;
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kDecode);
  bench.busy(1, 10, 10000);
  const Decision small = bench.decide(request(300));
  CHECK(small.path == Path::kLocal);
  CHECK(small.decode == 1);
  CHECK(small.reason == "local_small");
  CHECK(bench.decide(request(3000)).path == Path::kRemote);
}

TEST_CASE("a conversation's cached turn makes a long prompt a small one where it was decoded") {
  Bench bench;
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kDecode);
  bench.join(2, Role::kDecode);
  Request turn = request(4096 + 100);
  for (uint64_t hash = 1; hash <= 16; ++hash) {
    turn.blocks.push_back(hash);
    const CacheEvent event{.hash = hash};
    bench.scheduler->cache_changed(2, std::span(&event, 1));
  }
  bench.busy(2, 10, 20000);
  const Decision decision = bench.decide(turn);
  CHECK(decision.path == Path::kLocal);
  CHECK(decision.decode == 2);
  bench.scheduler->worker_left(2);
  CHECK(bench.decide(turn).path == Path::kRemote);
}

TEST_CASE("a session goes back to its worker, but not when that is much busier") {
  Bench bench;
  bench.join(0, Role::kPrefill);
  for (int i = 1; i <= 4; ++i) bench.join(i, Role::kDecode);
  Request turn = request(3000);
  turn.session = 77;
  const WorkerIndex home = bench.decide(turn).decode;
  bench.scheduler->prefill_finished(1);
  bench.scheduler->finished(1, 100);
  CHECK(bench.decide(turn).decode == home);
  bench.busy(home, 60, 300000);
  bench.scheduler->prefill_finished(2);
  CHECK(bench.decide(turn).decode != home);
}

TEST_CASE("prompts go where the least predicted work waits, counting what others sent") {
  Bench bench;
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kPrefill);
  bench.join(2, Role::kDecode);
  WorkerState busy = worker(Role::kPrefill);
  busy.prefill_backlog_tokens = 9000;
  bench.scheduler->worker_updated(0, busy);
  CHECK(bench.decide(request(3000)).prefill == 1);
  CHECK(bench.decide(request(3000)).prefill == 1);
}

TEST_CASE(
    "while every prefill worker has a prompt queued requests wait where they can go anywhere") {
  Bench bench;
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kDecode);
  CHECK(bench.decide(request(3000)).prefill == 0);
  CHECK(bench.decide(request(3000)).prefill == 0);
  CHECK(bench.waits(request(3000)));
  bench.join(2, Role::kPrefill);
  CHECK(bench.poll().at(0).prefill == 2);
  CHECK(bench.decide(request(3000)).prefill == 2);
  CHECK(bench.waits(request(3000)));
  bench.scheduler->prefill_finished(1);
  CHECK(bench.poll().at(0).prefill == 0);
}

TEST_CASE("decode capacity is promised by what tenants generate, not by what they ask for") {
  Bench bench;
  bench.join(0, Role::kPrefill, 64);
  bench.join(1, Role::kDecode, 64, 20000);
  for (int i = 0; i < 10; ++i) {
    CHECK(bench.decide(request(3000, 5000)).path == Path::kRemote);
    bench.scheduler->prefill_finished(bench.ticket);
    bench.scheduler->finished(bench.ticket, 100);
  }
  int held = 0;
  while (held < 20 && !bench.waits(request(3000, 5000))) {
    bench.scheduler->prefill_finished(bench.ticket);
    ++held;
  }
  CHECK(held == 6);  // 3,100 each of 20,000; max_tokens would have allowed 2
}

TEST_CASE("a decode worker at its time per token takes no more until it can") {
  Config config = config_with();
  config.slo.tpot = 20ms;
  Bench bench(config);
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kDecode);
  bench.busy(1, 40, 80000);  // 12.2 + 1.6 + 6.9 ms
  CHECK(bench.waits(request(3000)));
  bench.busy(1, 10, 10000);
  const auto decisions = bench.poll();
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].reason == "credits");
  CHECK(decisions[0].predicted_tpot_ms < 20);
}

TEST_CASE("an impossible time per token holds back only what a few sequences do not explain") {
  Config config = config_with();
  config.slo.tpot = 1ms;
  Bench bench(config);
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kDecode);
  CHECK(bench.decide(request(3000)).path == Path::kRemote);
  Request strict = request(3000);
  strict.refuse_on_miss = true;
  const Decision refused = bench.decide(strict);
  CHECK(refused.code == ErrorCode::kInvalidArgument);
  CHECK(refused.reason == "tpot_impossible: 12.5 ms idle, 1.0 allowed");
  strict.ttft_slo = 100ms;
  CHECK(bench.decide(strict).reason == "ttft_impossible: 218 ms idle, 100 allowed");
}

TEST_CASE("coupled workers compete with pairs by predicted time") {
  Bench bench;
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kDecode);
  bench.join(2, Role::kCoupled);
  bench.busy(2, 10, 10000, Role::kCoupled);
  CHECK(bench.decide(request(3000)).path == Path::kRemote);
  CHECK(bench.decide(request(3000)).path == Path::kLocal);  // The prefill worker is busy now
}

TEST_CASE("who can still be in time goes before who cannot") {
  Bench bench;
  bench.join(0, Role::kPrefill, 1);
  bench.join(1, Role::kDecode);
  CHECK(bench.decide(request(3000)).path == Path::kRemote);
  CHECK(bench.decide(request(3000)).path == Path::kRemote);
  CHECK(bench.waits(request(9000)));
  bench.clock.advance(3s);
  CHECK(bench.waits(request(9000)));
  bench.scheduler->prefill_finished(1);
  CHECK(bench.poll().at(0).ticket == 4);
}

TEST_CASE("predictions follow what came of the ones before, and the bound holds") {
  Bench bench;
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kDecode);
  const double idle = profile_costs().prefill_ms(0, 3000);
  for (int i = 0; i < 200; ++i) {
    const Decision decision = bench.decide(request(3000));
    if (i == 0) CHECK(decision.predicted_ttft_ms == doctest::Approx(idle));
    // Twice the prediction in the median, up to three times.
    bench.clock.advance(Duration(1us) * static_cast<int>(1000 * idle * (1 + (i * 7 % 20) / 10.0)));
    bench.scheduler->prefill_finished(bench.ticket);
    bench.scheduler->first_token(bench.ticket, bench.clock.now());
    bench.scheduler->first_token(bench.ticket, bench.clock.now() + 1h);  // Only the first counts
    bench.scheduler->finished(bench.ticket, 100);
  }
  const Decision decision = bench.decide(request(3000));
  CHECK(decision.predicted_ttft_ms == doctest::Approx(2 * idle).epsilon(0.06));
  CHECK(decision.predicted_ttft_bound_ms == doctest::Approx(2.8 * idle).epsilon(0.06));
}

TEST_CASE("a clock that jumps ahead or back neither breaks predictions nor loses a request") {
  Bench bench;
  bench.clock.advance(1h);
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kDecode);
  CHECK(bench.decide(request(3000)).path == Path::kRemote);
  bench.clock.advance(-30min);
  const Decision back = bench.decide(request(3000));
  CHECK(back.predicted_ttft_ms == doctest::Approx(2 * profile_costs().prefill_ms(0, 3000)));
  bench.scheduler->prefill_finished(1);
  bench.scheduler->first_token(1, bench.clock.now());
  bench.clock.advance(5h);
  bench.scheduler->prefill_finished(2);
  bench.scheduler->first_token(2, bench.clock.now());
  const Decision ahead = bench.decide(request(3000));
  CHECK(ahead.path == Path::kRemote);
  CHECK(ahead.predicted_ttft_ms == doctest::Approx(profile_costs().prefill_ms(0, 3000)));
  CHECK(bench.scheduler->dispatched() == 3);
}

// Offers a request every `gap` for `seconds`; workers take what the profile says. Returns the
// tickets' fates.
struct Overload {
  Bench bench;
  std::vector<std::pair<TimePoint, int>> running;  // End of the prompt, ticket
  std::vector<std::pair<TimePoint, int>> told;     // Comes back then; whose prompt
  int admitted_first = 0, refused_again = 0, refused = 0, admitted_retry = 0;
  int prompts = 0;

  void absorb(const std::vector<Decision>& decisions, bool retry, TimePoint submitted) {
    for (const Decision& d : decisions) {
      if (d.path == Path::kRefuse) {
        ++(retry ? refused_again : refused);
        if (!retry)
          told.emplace_back(submitted + std::chrono::duration_cast<Duration>(
                                            std::chrono::duration<double>(d.retry_after_seconds)),
                            prompts);
        continue;
      }
      TimePoint start = bench.clock.now();
      for (const auto& [end, ticket] : running) start = std::max(start, end);
      running.emplace_back(
          start + Duration(1us) * static_cast<int>(1000 * profile_costs().prefill_ms(0, 3000)),
          static_cast<int>(d.ticket));
    }
  }
  void tick() {
    bench.clock.advance(10ms);
    while (!running.empty() && running.front().first <= bench.clock.now()) {
      bench.scheduler->prefill_finished(static_cast<Ticket>(running.front().second));
      bench.scheduler->first_token(static_cast<Ticket>(running.front().second), bench.clock.now());
      bench.scheduler->finished(static_cast<Ticket>(running.front().second), 50);
      running.erase(running.begin());
    }
    absorb(bench.poll(), false, bench.clock.now());
  }
  void offer(bool retry, int prompt) {
    Request what = request(3000, 50);
    what.fingerprint = static_cast<uint64_t>(prompt);
    what.refuse_on_miss = true;
    const int before = static_cast<int>(bench.scheduler->queued() + bench.scheduler->dispatched());
    bench.scheduler->submit(++bench.ticket, what, bench.clock.now());
    absorb(bench.poll(), retry, bench.clock.now());
    const int after = static_cast<int>(bench.scheduler->queued() + bench.scheduler->dispatched());
    if (after > before) ++(retry ? admitted_retry : admitted_first);
  }
};

TEST_CASE("three times the capacity: the refused come back as told and are admitted") {
  Overload load;
  load.bench.join(0, Role::kPrefill);
  load.bench.join(1, Role::kDecode);
  for (int i = 0; i < 9000; ++i) {
    load.tick();
    if (i < 1500 && i % 7 == 0) load.offer(false, ++load.prompts);  // 14/s; one worker does 4.7/s
    while (true) {
      const auto due = std::ranges::min_element(load.told);
      if (due == load.told.end() || due->first > load.bench.clock.now()) break;
      const int prompt = due->second;
      load.told.erase(due);
      load.offer(true, prompt);
    }
  }
  MESSAGE("admitted at once " << load.admitted_first << ", refused " << load.refused
                              << ", admitted at the first retry " << load.admitted_retry
                              << ", refused again " << load.refused_again);
  CHECK(load.refused > 80);
  CHECK(load.admitted_retry >= 0.9 * load.refused);
}

TEST_CASE("a tenant that floods a full queue makes room for another") {
  Config config = config_with();
  config.scheduler.queue_max = 10;
  Bench bench(config);
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kDecode);
  Request flood = request(3000);
  flood.tenant = "flood";
  CHECK(bench.decide(flood).path == Path::kRemote);
  CHECK(bench.decide(flood).path == Path::kRemote);
  for (int i = 0; i < 10; ++i) CHECK(bench.waits(flood));
  CHECK(bench.decide(flood).reason == "queue_full");
  Request quiet = request(3000);
  quiet.tenant = "quiet";
  bench.scheduler->submit(100, quiet, bench.clock.now());
  const auto decisions = bench.poll();
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].ticket == 12);  // The flood's last
  bench.scheduler->prefill_finished(1);
  CHECK(bench.poll().at(0).ticket <= 100);
  bench.scheduler->prefill_finished(2);
  bench.poll();
  CHECK(bench.scheduler->queued() == 8);
}

TEST_CASE("what the router relies on holds as with the other policies") {
  Bench bench;
  CHECK(bench.decide(request(100)).reason == "no_worker");
  bench.join(0, Role::kPrefill);
  const Decision none = bench.decide(request(100));
  CHECK(none.reason == "no_decode_worker");
  CHECK(none.code == ErrorCode::kUnavailable);
  Request one = request(100, 1);
  one.prefill_only = true;
  CHECK(bench.decide(one).path == Path::kPrefillOnly);
  bench.join(1, Role::kDecode, 4, 1000);
  CHECK(bench.decide(request(2000, 100)).reason == "too_large");
  bench.scheduler->worker_left(0);
  CHECK(bench.decide(request(100)).reason == "no_prefill");
  CHECK(bench.waits(request(100)));
  bench.clock.advance(31s);
  const auto decisions = bench.poll();
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].reason == "queue_deadline");
  CHECK(bench.scheduler->next_wakeup() == TimePoint::max());
}

TEST_CASE("workers that just failed a request are avoided while there are others") {
  Bench bench;
  for (int i = 0; i < 2; ++i) bench.join(i, Role::kPrefill);
  for (int i = 2; i < 4; ++i) bench.join(i, Role::kDecode);
  Request again = request(3000);
  again.avoid = {0, 2};
  Decision decision = bench.decide(again);
  CHECK(decision.prefill == 1);
  CHECK(decision.decode == 3);
  bench.scheduler->worker_left(1);
  bench.scheduler->worker_left(3);
  decision = bench.decide(again);
  CHECK(decision.prefill == 0);
  CHECK(decision.decode == 2);
}

TEST_CASE("a resumed stream goes before all that waits") {
  Bench bench;
  bench.join(0, Role::kPrefill);
  bench.join(1, Role::kDecode);
  bench.decide(request(3000));
  bench.decide(request(3000));
  CHECK(bench.waits(request(3000)));
  Request resumed = request(3000);
  resumed.priority = std::numeric_limits<int>::min();
  CHECK(bench.waits(resumed));
  bench.scheduler->prefill_finished(1);
  CHECK(bench.poll().at(0).ticket == 4);
}

}  // namespace
}  // namespace tandem::scheduler

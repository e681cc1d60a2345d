// Proves the first policy's rules one by one, each on a handful of workers and a clock that is
// stepped by hand.
#include <doctest/doctest.h>

#include "scheduler/scheduler.h"

namespace tandem::scheduler {
namespace {

using namespace std::chrono_literals;

WorkerState prefill_worker(double us_per_token = 100) {
  return WorkerState{.name = "p",
                     .role = Role::kPrefill,
                     .slots = 4,
                     .slots_free = 4,
                     .kv_tokens_capacity = 16384,
                     .prefill_us_per_token = us_per_token};
}
WorkerState decode_worker(int slots = 16, int64_t kv_tokens = 65536) {
  return WorkerState{.name = "d",
                     .role = Role::kDecode,
                     .slots = slots,
                     .slots_free = slots,
                     .kv_tokens_capacity = kv_tokens,
                     .decode_step_ms = 10};
}
WorkerState coupled_worker() {
  WorkerState state = decode_worker();
  state.role = Role::kCoupled;
  return state;
}
Request request(int prompt_tokens, int max_tokens = 16, int choices = 1) {
  return Request{.prompt_tokens = prompt_tokens, .max_tokens = max_tokens, .choices = choices};
}

struct Bench {
  explicit Bench(SchedulerConfig limits = {}) {
    Config config;
    config.scheduler = limits;
    if (limits.policy == "slack") config.scheduler.policy = "least_backlog";
    scheduler = make_scheduler(config);
  }
  // The one decision for one request.
  Decision decide(const Request& what) {
    scheduler->submit(++ticket, what, clock.now());
    std::vector<Decision> decisions = scheduler->poll(clock.now());
    REQUIRE(decisions.size() == 1);
    CHECK(decisions[0].ticket == ticket);
    return decisions[0];
  }
  bool waits(const Request& what) {
    scheduler->submit(++ticket, what, clock.now());
    return scheduler->poll(clock.now()).empty();
  }

  ManualClock clock;
  std::unique_ptr<Scheduler> scheduler;
  Ticket ticket = 0;
};

TEST_CASE("a request goes to the prefill worker with the smaller predicted backlog") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker(100));
  bench.scheduler->worker_joined(1, prefill_worker(400));
  bench.scheduler->worker_joined(2, decode_worker());
  const Decision first = bench.decide(request(1000));
  CHECK(first.path == Path::kRemote);
  CHECK(first.prefill == 0);
  CHECK(first.decode == 2);
  CHECK(first.reason == "backlog");
  CHECK(first.predicted_ttft_ms == doctest::Approx(100));
  // 100 us x (1000 + 1000) is still less than 400 us x 1000; one more turns the scales.
  CHECK(bench.decide(request(1000)).prefill == 0);
  CHECK(bench.decide(request(1000)).prefill == 0);
  CHECK(bench.decide(request(1000)).prefill == 1);
}

TEST_CASE("a worker's backlog counts what other routers sent, and nothing twice") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, prefill_worker());
  bench.scheduler->worker_joined(2, decode_worker());
  WorkerState busy = prefill_worker();
  busy.prefill_backlog_tokens = 3000;
  bench.scheduler->worker_updated(0, busy);
  CHECK(bench.decide(request(1000)).prefill == 1);
  CHECK(bench.decide(request(1000)).prefill == 1);
  // Worker 1 reports the same 2000 tokens that were dispatched: still 2000, so it wins against
  // 3000.
  WorkerState reported = prefill_worker();
  reported.prefill_backlog_tokens = 2000;
  bench.scheduler->worker_updated(1, reported);
  CHECK(bench.decide(request(100)).prefill == 1);
}

TEST_CASE("load counts from the dispatch on, not from the first answer") {
  Bench bench;
  for (int i = 0; i < 4; ++i) bench.scheduler->worker_joined(i, prefill_worker());
  bench.scheduler->worker_joined(4, decode_worker());
  std::vector<int> count(4);
  for (int i = 0; i < 8; ++i) ++count[static_cast<size_t>(bench.decide(request(500)).prefill)];
  CHECK(count == std::vector<int>{2, 2, 2, 2});
}

TEST_CASE("cached tokens are no backlog") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker());
  Request cached = request(1000);
  cached.cached_tokens = 900;
  CHECK(bench.decide(cached).predicted_ttft_ms == doctest::Approx(10));
}

TEST_CASE("the decode worker that stays emptiest is chosen") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker(16, 4096));
  bench.scheduler->worker_joined(2, decode_worker(16, 65536));
  CHECK(bench.decide(request(2000, 1000)).decode == 2);
  CHECK(bench.decide(request(2000, 1000)).decode == 2);
}

TEST_CASE("a request waits until a decode worker can promise its KV, and goes when it can") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker(16, 2000));
  CHECK(bench.decide(request(1000, 500)).path == Path::kRemote);
  CHECK(bench.waits(request(400, 200)));
  CHECK(bench.scheduler->queued() == 1);
  bench.scheduler->finished(1, -1);
  const auto decisions = bench.scheduler->poll(bench.clock.now());
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].ticket == 2);
  CHECK(decisions[0].reason == "credits");
}

TEST_CASE("every choice takes a slot and its own KV, capped to the context") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker(4, 1 << 20));
  CHECK(bench.decide(request(10, 10, 3)).path == Path::kRemote);
  CHECK(bench.waits(request(10, 10, 2)));
  bench.scheduler->finished(1, -1);
  CHECK(bench.scheduler->poll(bench.clock.now()).size() == 1);

  Bench capped;
  capped.scheduler->worker_joined(0, prefill_worker());
  capped.scheduler->worker_joined(1, decode_worker(16, 8192));  // Two contexts of 4096
  CHECK(capped.decide(request(100, 100000, 2)).path == Path::kRemote);
}

TEST_CASE("a small request does not overtake a large one that waits") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker(16, 4000));
  CHECK(bench.decide(request(3000, 500)).path == Path::kRemote);
  CHECK(bench.waits(request(3000, 500)));
  CHECK(bench.waits(request(10, 10)));
  bench.scheduler->finished(1, -1);
  const auto decisions = bench.scheduler->poll(bench.clock.now());
  REQUIRE(decisions.size() == 2);
  CHECK(decisions[0].ticket == 2);
  CHECK(decisions[1].ticket == 3);
}

TEST_CASE("a lower priority value goes first") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker(1));
  CHECK(bench.decide(request(10)).path == Path::kRemote);
  CHECK(bench.waits(request(10)));
  Request urgent = request(10);
  urgent.priority = -1;
  CHECK(bench.waits(urgent));
  bench.scheduler->finished(1, -1);
  CHECK(bench.scheduler->poll(bench.clock.now()).at(0).ticket == 3);
}

TEST_CASE("prompts are bound to a prefill worker only shortly before it is free") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker(64));
  for (int i = 0; i < 8; ++i) CHECK(bench.decide(request(100)).prefill == 0);
  CHECK(bench.waits(request(100)));
  bench.scheduler->worker_joined(2, prefill_worker());
  CHECK(bench.scheduler->poll(bench.clock.now()).at(0).prefill == 2);
  CHECK(bench.decide(request(100)).prefill == 2);
}

TEST_CASE("a computed prompt frees its prefill share but keeps its decode share") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker(1));
  CHECK(bench.decide(request(1000)).path == Path::kRemote);
  bench.scheduler->prefill_finished(1);
  bench.scheduler->prefill_finished(1);
  CHECK(bench.waits(request(1000)));
  bench.scheduler->finished(1, -1);
  const auto decisions = bench.scheduler->poll(bench.clock.now());
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].predicted_ttft_ms == doctest::Approx(100));
}

TEST_CASE("coupled workers run prompts themselves") {
  Bench bench;
  bench.scheduler->worker_joined(0, coupled_worker());
  const Decision decision = bench.decide(request(100));
  CHECK(decision.path == Path::kLocal);
  CHECK(decision.prefill == -1);
  CHECK(decision.decode == 0);
  CHECK(decision.reason == "coupled");
}

TEST_CASE("decode workers stand in for lost prefill workers, one prompt at a time") {
  Bench bench;
  bench.scheduler->worker_joined(0, decode_worker());
  const Decision decision = bench.decide(request(100));
  CHECK(decision.path == Path::kLocal);
  CHECK(decision.reason == "no_prefill");
  CHECK(bench.waits(request(100)));
  bench.scheduler->prefill_finished(1);
  CHECK(bench.scheduler->poll(bench.clock.now()).size() == 1);
}

TEST_CASE("one token needs no decode worker") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  Request one = request(100, 1);
  one.prefill_only = true;
  const Decision decision = bench.decide(one);
  CHECK(decision.path == Path::kPrefillOnly);
  CHECK(decision.decode == -1);
  bench.scheduler->finished(1, -1);
}

TEST_CASE("without any worker the answer is unavailable at once") {
  Bench bench;
  const Decision none = bench.decide(request(100));
  CHECK(none.path == Path::kRefuse);
  CHECK(none.code == ErrorCode::kUnavailable);
  CHECK(none.reason == "no_worker");
  CHECK(none.retry_after_seconds >= 1);
  bench.scheduler->worker_joined(0, prefill_worker());
  CHECK(bench.decide(request(100)).reason == "no_decode_worker");
  WorkerState draining = decode_worker();
  draining.accepting = false;
  bench.scheduler->worker_joined(1, draining);
  CHECK(bench.decide(request(100)).code == ErrorCode::kUnavailable);
}

TEST_CASE("what no worker can ever hold is refused at once") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker(4, 1000));
  CHECK(bench.decide(request(1000, 100)).reason == "too_large");
  CHECK(bench.decide(request(10, 10, 5)).reason == "too_large");
}

TEST_CASE("a full queue refuses with the time that the backlog takes") {
  SchedulerConfig limits;
  limits.queue_max = 2;
  Bench bench(limits);
  bench.scheduler->worker_joined(0, prefill_worker(5000));
  bench.scheduler->worker_joined(1, decode_worker(1));
  CHECK(bench.decide(request(2000)).path == Path::kRemote);
  CHECK(bench.waits(request(2000)));
  CHECK(bench.waits(request(2000)));
  const Decision decision = bench.decide(request(2000));
  CHECK(decision.code == ErrorCode::kResourceExhausted);
  CHECK(decision.reason == "queue_full");
  // One prompt runs and two are queued: 6000 tokens of 5 ms.
  CHECK(decision.retry_after_seconds == doctest::Approx(30));
}

TEST_CASE("the wait to retry stays between one second and sixty") {
  SchedulerConfig limits;
  limits.queue_max = 1;
  Bench slow(limits);
  slow.scheduler->worker_joined(0, prefill_worker(1e6));
  slow.scheduler->worker_joined(1, decode_worker(1));
  CHECK(slow.decide(request(2000)).path == Path::kRemote);
  CHECK(slow.waits(request(2000)));
  CHECK(slow.decide(request(2000)).retry_after_seconds == 60);
  Bench fast(limits);
  fast.scheduler->worker_joined(0, prefill_worker(1));
  fast.scheduler->worker_joined(1, decode_worker(1));
  CHECK(fast.decide(request(20)).path == Path::kRemote);
  CHECK(fast.waits(request(20)));
  CHECK(fast.decide(request(20)).retry_after_seconds == 1);
}

TEST_CASE("a wait ends at the queue's deadline or the request's own") {
  SchedulerConfig limits;
  limits.queue_deadline = 5s;
  Bench bench(limits);
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker(1));
  CHECK(bench.decide(request(10)).path == Path::kRemote);
  CHECK(bench.waits(request(10)));
  Request hurried = request(10);
  hurried.deadline = bench.clock.now() + 2s;
  CHECK(bench.waits(hurried));
  CHECK(bench.scheduler->next_wakeup() == hurried.deadline);
  bench.clock.advance(2s);
  auto decisions = bench.scheduler->poll(bench.clock.now());
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].ticket == 3);
  CHECK(decisions[0].reason == "deadline");
  CHECK(decisions[0].code == ErrorCode::kDeadlineExceeded);
  bench.clock.advance(3s);
  decisions = bench.scheduler->poll(bench.clock.now());
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].ticket == 2);
  CHECK(decisions[0].reason == "queue_deadline");
  CHECK(bench.scheduler->next_wakeup() == TimePoint::max());
}

TEST_CASE("a withdrawn request gets no decision") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker(1));
  CHECK(bench.decide(request(10)).path == Path::kRemote);
  CHECK(bench.waits(request(10)));
  bench.scheduler->withdraw(2);
  bench.scheduler->finished(1, -1);
  CHECK(bench.scheduler->poll(bench.clock.now()).empty());
  CHECK(bench.scheduler->queued() == 0);
  CHECK(bench.scheduler->dispatched() == 0);
}

TEST_CASE("workers that just failed a request are avoided while there are others") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker(100));
  bench.scheduler->worker_joined(1, prefill_worker(400));
  bench.scheduler->worker_joined(2, decode_worker());
  bench.scheduler->worker_joined(3, decode_worker());
  Request again = request(100);
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

TEST_CASE("shares of a worker that left do not weigh on its successor at the same index") {
  Bench bench;
  bench.scheduler->worker_joined(0, prefill_worker());
  bench.scheduler->worker_joined(1, decode_worker(1));
  CHECK(bench.decide(request(100)).decode == 1);
  bench.scheduler->worker_left(1);
  bench.scheduler->worker_joined(1, decode_worker(1));
  CHECK(bench.decide(request(100)).decode == 1);
  bench.scheduler->finished(1, -1);
  CHECK(bench.waits(request(100)));
  bench.scheduler->finished(2, -1);
  CHECK(bench.scheduler->poll(bench.clock.now()).size() == 1);
}

TEST_CASE("round robin takes workers in turn whatever their load") {
  SchedulerConfig limits;
  limits.policy = "round_robin";
  Bench bench(limits);
  bench.scheduler->worker_joined(0, prefill_worker(1));
  bench.scheduler->worker_joined(1, prefill_worker(1000));
  bench.scheduler->worker_joined(2, decode_worker());
  bench.scheduler->worker_joined(3, decode_worker());
  bench.scheduler->worker_joined(4, decode_worker());
  std::vector<int> prefill, decode;
  for (int i = 0; i < 6; ++i) {
    const Decision decision = bench.decide(request(100));
    prefill.push_back(decision.prefill);
    decode.push_back(decision.decode);
    CHECK(decision.reason == "round_robin");
  }
  CHECK(prefill == std::vector<int>{0, 1, 0, 1, 0, 1});
  CHECK(decode == std::vector<int>{2, 3, 4, 2, 3, 4});
}

}  // namespace
}  // namespace tandem::scheduler

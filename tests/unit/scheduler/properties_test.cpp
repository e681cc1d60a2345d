// Proves what must hold whatever happens: a seeded random history of joins, losses, reports,
// requests, withdrawals and endings, against a small model of what has been promised.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>

#include "scheduler/scheduler.h"

namespace tandem::scheduler {
namespace {

using namespace std::chrono_literals;

uint64_t test_seed() {
  const char* text = std::getenv("TANDEM_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
  MESSAGE("TANDEM_SEED=" << seed);
  return seed;
}

constexpr int kIndexes = 12;

class History {
 public:
  History(uint64_t seed, const std::string& policy) : random_(seed), slack_(policy == "slack") {
    config_.scheduler.queue_max = 50;
    config_.scheduler.policy = policy;
    config_.scheduler.prefix_index_bytes = config_.scheduler.session_index_bytes = 1 << 20;
    config_.ratio.mode = pick(2) == 0 ? "auto" : "fixed";
    scheduler_ = make_scheduler(config_);
  }

  void step() {
    switch (pick(12)) {
      case 0:
        join();
        break;
      case 1:
        if (pick(4) == 0) leave();
        break;
      case 2:
        report();
        break;
      case 3:
        withdraw();
        break;
      case 4:
        finish();
        break;
      case 5:
        finish_prefill();
        break;
      case 6:
        clock_.advance(Duration(1s) * (pick(20) == 0 ? pick(10000) - 5000 : pick(10)));
        break;
      case 7:
        learn();
        break;
      default:
        submit();
        break;
    }
    absorb(scheduler_->poll(clock_.now()));
    check();
  }

  void end() {
    while (!dispatched_.empty() || !waiting_.empty()) {
      while (!dispatched_.empty()) finish();
      clock_.advance(31s);
      absorb(scheduler_->poll(clock_.now()));
      check();
    }
    CHECK(scheduler_->queued() == 0);
    CHECK(scheduler_->dispatched() == 0);
    CHECK(scheduler_->next_wakeup() == TimePoint::max());
  }

 private:
  struct Share {
    WorkerIndex decode = -1;
    uint64_t life = 0;
    int64_t tokens = 0;
    int slots = 0;
  };
  struct Known {
    bool present = false;
    uint64_t life = 0;
    WorkerState state;
  };

  int pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }
  Known& known(int index) { return known_[static_cast<size_t>(index)]; }

  void join() {
    const int index = pick(kIndexes);
    if (known(index).present) return;
    WorkerState state{.role = static_cast<Role>(pick(4)), .slots = 1 + pick(8)};
    state.slots_free = state.slots;
    state.kv_tokens_capacity = 2000 + pick(20000);
    known(index) = {true, ++lives_, state};
    scheduler_->worker_joined(index, state);
  }
  void leave() {
    const int index = pick(kIndexes);
    if (!known(index).present) return;
    known(index).present = false;
    scheduler_->worker_left(index);
  }
  void report() {
    const int index = pick(kIndexes);
    if (!known(index).present) return;
    WorkerState& state = known(index).state;
    state.slots_free = pick(state.slots + 1);
    state.kv_tokens_used = pick(static_cast<int>(state.kv_tokens_capacity));
    state.prefill_backlog_tokens = pick(5000);
    state.prefill_us_per_token = pick(300);
    state.accepting = pick(5) != 0;
    if (pick(10) == 0) state.role = static_cast<Role>(pick(4));
    scheduler_->worker_updated(index, state);
  }
  // All that may be told and asked besides; most of it makes no sense.
  void learn() {
    const int index = pick(kIndexes);
    const double ms = pick(4) == 0 ? std::numeric_limits<double>::quiet_NaN() : pick(2000) - 200;
    scheduler_->observe(index, {.prompt_first = pick(5000),
                                .prompt_tokens = pick(2) * pick(3000),
                                .sequences = pick(20),
                                .context_tokens = pick(50000),
                                .ms = ms});
    const CacheEvent event{.hash = static_cast<uint64_t>(pick(40)), .stored = pick(3) != 0};
    scheduler_->cache_changed(index, std::span(&event, 1));
    if (!dispatched_.empty()) scheduler_->first_token(dispatched_.begin()->first, clock_.now());
    for (const RoleMove& move : scheduler_->role_moves(clock_.now())) {
      REQUIRE(known(move.worker).present);
      if (pick(2) == 0) {
        known(move.worker).state.role = move.to;
        scheduler_->worker_updated(move.worker, known(move.worker).state);
      } else {
        scheduler_->role_move_failed(move.worker, clock_.now());
      }
    }
  }
  void submit() {
    Request request{
        .prompt_tokens = 1 + pick(4000), .max_tokens = 1 + pick(2000), .choices = 1 + pick(3)};
    request.prefill_only = pick(5) == 0;
    if (pick(3) == 0) request.avoid = {pick(kIndexes)};
    if (pick(4) == 0) request.deadline = clock_.now() + Duration(1s) * (1 + pick(20));
    if (slack_) {
      request.tenant = std::to_string(pick(3));
      request.priority = pick(10) == 0 ? std::numeric_limits<int>::min() : pick(3);
      request.refuse_on_miss = pick(4) == 0;
      request.ttft_slo = Duration(1ms) * pick(5000);
      request.tpot_slo = Duration(1ms) * pick(100);
      request.session = static_cast<uint64_t>(pick(5));
      for (int i = pick(6); i > 0; --i) request.blocks.push_back(static_cast<uint64_t>(pick(40)));
    }
    waiting_[++tickets_] = request;
    scheduler_->submit(tickets_, request, clock_.now());
  }
  void withdraw() {
    if (waiting_.empty() || pick(3) != 0) return;
    auto it = std::next(waiting_.begin(), pick(static_cast<int>(waiting_.size())));
    scheduler_->withdraw(it->first);
    waiting_.erase(it);
  }
  void finish() {
    if (dispatched_.empty()) return;
    auto it = std::next(dispatched_.begin(), pick(static_cast<int>(dispatched_.size())));
    scheduler_->finished(it->first, -1);
    dispatched_.erase(it);
  }
  void finish_prefill() {
    if (dispatched_.empty()) return;
    auto it = std::next(dispatched_.begin(), pick(static_cast<int>(dispatched_.size())));
    scheduler_->prefill_finished(it->first);
  }

  void absorb(const std::vector<Decision>& decisions) {
    Ticket last = 0;
    for (const Decision& decision : decisions) {
      const auto it = waiting_.find(decision.ticket);
      REQUIRE(it != waiting_.end());  // Exactly one decision, and none for a withdrawn ticket
      if (decision.path != Path::kRefuse) {
        if (!slack_) CHECK(decision.ticket > last);
        last = decision.ticket;
        place(decision, it->second);
      } else {
        CHECK(decision.code != ErrorCode::kOk);
        CHECK(decision.retry_after_seconds >= 1);
        CHECK(decision.retry_after_seconds <= 60);
      }
      waiting_.erase(it);
    }
    // Nobody who still waits came earlier: strict order of arrival.
    if (!slack_ && last != 0 && !waiting_.empty()) CHECK(waiting_.begin()->first > last);
  }
  void place(const Decision& decision, const Request& request) {
    Share share;
    if (decision.decode >= 0) {
      const Known& worker = known(decision.decode);
      REQUIRE(worker.present);
      CHECK(worker.state.accepting);
      CHECK(serves_decode(worker.state.role));
      CHECK(std::isfinite(decision.predicted_ttft_ms));
      CHECK(decision.predicted_ttft_ms >= 0);
      share = {decision.decode, worker.life, 0, request.choices};
      share.tokens =
          std::min<int64_t>(4096, request.prompt_tokens + request.max_tokens) * request.choices;
    }
    if (decision.prefill >= 0) {
      CHECK(known(decision.prefill).present);
      CHECK(serves_prefill(known(decision.prefill).state.role));
    }
    CHECK((decision.path == Path::kRemote) == (decision.prefill >= 0 && decision.decode >= 0));
    dispatched_[decision.ticket] = share;
  }
  void check() {
    std::map<WorkerIndex, Share> sums;
    for (const auto& [ticket, share] : dispatched_) {
      if (share.decode < 0 || known(share.decode).life != share.life) continue;
      sums[share.decode].tokens += share.tokens;
      sums[share.decode].slots += share.slots;
    }
    for (const auto& [index, sum] : sums) {
      CHECK(sum.tokens <= known(index).state.kv_tokens_capacity);
      CHECK(sum.slots <= known(index).state.slots);
    }
    CHECK(scheduler_->queued() == static_cast<int>(waiting_.size()));
    CHECK(scheduler_->dispatched() == static_cast<int>(dispatched_.size()));
    CHECK(scheduler_->queued() <= config_.scheduler.queue_max);
  }

  std::mt19937_64 random_;
  const bool slack_;
  Config config_;
  ManualClock clock_;
  std::unique_ptr<Scheduler> scheduler_;
  std::array<Known, kIndexes> known_;
  uint64_t lives_ = 0;
  Ticket tickets_ = 0;
  std::map<Ticket, Request> waiting_;
  std::map<Ticket, Share> dispatched_;
};

TEST_CASE("no promise exceeds a worker, order holds and every ticket gets one decision") {
  const uint64_t seed = test_seed();
  for (const char* policy : {"slack", "least_backlog", "static_split", "round_robin"}) {
    for (uint64_t run = 0; run < 30; ++run) {
      CAPTURE(policy);
      CAPTURE(run);
      History history(seed + run, policy);
      for (int i = 0; i < 500; ++i) history.step();
      history.end();
    }
  }
}

}  // namespace
}  // namespace tandem::scheduler

// Dispatcher: takes attempts, has the scheduler choose workers, commands both legs, relays what
// they answer, and gives every share back when an attempt ends, however it ends.
//
// Owned by the router. Lives on the link thread, where it owns the scheduler; submit(), cancel(),
// cancel_choice(), change_role(), stop() and the const functions may be called from any thread and
// take effect in order. Events go to the attempt's mailbox, in batches per I/O thread. An attempt
// ends exactly once, in end(): after that its transfer id is unknown here and whatever workers
// still say about it is ignored.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/config.h"
#include "router/attempt.h"
#include "router/decision_file.h"
#include "router/mailbox.h"
#include "router/role_moves.h"
#include "router/router_metrics.h"
#include "router/stages.h"
#include "router/timeline.h"
#include "router/worker_pool.h"
#include "scheduler/scheduler.h"

namespace tandem::router {

class Dispatcher final : public PoolListener {
 public:
  struct Parts {
    const Config& config;
    const Clock& clock;
    boost::asio::io_context& io;
    WorkerPool& pool;
    Timeline& timeline;
    Stages& stages;
    const RouterMetrics& metrics;
    DecisionFile* decisions = nullptr;  // Null: no log
    int vocab = 0;                      // Tokens of workers must lie below
  };

  explicit Dispatcher(const Parts& parts);
  ~Dispatcher() override;

  // On the link thread, once.
  void start();
  void submit(AttemptSpec spec);
  // The whole attempt, or one choice of it. Nothing more will be delivered for it, save what is on
  // its way.
  void cancel(TransferId attempt, std::string reason);
  void cancel_choice(TransferId attempt, int choice);
  // See RoleMoves::ask(). Waits for the link thread, so it must not be called there.
  Status change_role(const std::string& worker, Role to);
  // Fails all attempts, those to come included.
  void stop(Status reason);

  int queued() const { return queued_.load(std::memory_order_relaxed); }
  int running() const { return running_.load(std::memory_order_relaxed); }
  // What a client that is turned away now should wait.
  double retry_after_seconds() const { return retry_after_.load(std::memory_order_relaxed); }
  scheduler::Recommendation recommendation() const;

  void worker_up(scheduler::WorkerIndex worker) override;
  void worker_changed(scheduler::WorkerIndex worker) override;
  void worker_measured(scheduler::WorkerIndex worker,
                       const std::vector<link::StepSample>& samples) override;
  void worker_down(scheduler::WorkerIndex worker, const Status& why) override;
  void worker_frame(scheduler::WorkerIndex worker, link::FrameKind kind,
                    std::string_view body) override;

 private:
  struct Attempt;
  using Attempts = std::unordered_map<TransferId, std::unique_ptr<Attempt>>;
  struct Outbox;
  struct Shun {
    Duration pause{};
    TimePoint until{};
  };

  // From the queue to the workers: dispatcher.cpp.
  void take(AttemptSpec spec);
  void pump();
  void decide(const scheduler::Decision& decision);
  void refuse(Attempt& attempt, const scheduler::Decision& decision);
  void open_gate();
  bool passes(const Attempt& attempt) const;
  void dispatch(Attempt& attempt);
  void command(Attempt& attempt);
  void fail(Attempt& attempt, AttemptFailed failure);
  void cancel_legs(const Attempt& attempt, const std::string& reason,
                   scheduler::WorkerIndex except = -1);
  void end(TransferId transfer, std::string_view outcome);
  void close_choice(Attempt& attempt, int choice);
  void post_event(const Attempt& attempt, AttemptEvent event);
  Attempt* find(TransferId transfer);
  void move(Attempt& attempt, Stage to);
  void leave_stage(Attempt& attempt, bool served);
  void note_record(Attempt& attempt, const scheduler::Decision& decision);
  void write_record(Attempt& attempt, std::string_view outcome, int output_tokens);
  void sweep();
  void arm();
  void count();
  void tick();
  void arm_tick();

  // What workers say: dispatcher_events.cpp.
  void prompt_done(scheduler::WorkerIndex worker, link::PrefillDone done);
  void tokens(scheduler::WorkerIndex worker, link::Tokens tokens);
  // False when the entry breaks the protocol.
  bool token(Attempt& attempt, link::TokenEntry entry, Outbox& outbox);
  void token_said(Attempt& attempt, TimePoint now);
  void leg_failed(scheduler::WorkerIndex worker, const link::LegFailed& failed);
  void leg_event(scheduler::WorkerIndex worker, link::LegEvent event);
  void shun(scheduler::WorkerIndex worker);

  const Parts parts_;
  const TimePoint started_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  RoleMoves role_moves_;
  Attempts attempts_;
  // Decisions that wait for room in the stages behind them, in order. The scheduler's credits bound
  // how many there can be.
  std::deque<TransferId> gate_;
  int64_t committed_tokens_ = 0;   // Of remote prompts that have not joined
  int64_t unconsumed_tokens_ = 0;  // Those of them that are computed
  std::unordered_map<scheduler::WorkerIndex, Shun> shunned_;  // Workers that failed lately
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer second_timer_;
  TimePoint armed_for_ = TimePoint::max();
  Status stopped_;
  bool pumping_ = false;
  std::atomic<int> queued_{0};
  std::atomic<int> running_{0};
  std::atomic<double> retry_after_{1};
  mutable std::mutex recommendation_mutex_;
  scheduler::Recommendation recommendation_;  // Guarded by recommendation_mutex_
};

}  // namespace tandem::router

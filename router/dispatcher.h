// Dispatcher: takes attempts, has the scheduler choose workers, commands both legs, relays what
// they answer, and gives every share back when an attempt ends, however it ends.
//
// Owned by the router. Lives on the link thread, where it owns the scheduler; submit(), cancel(),
// cancel_choice() and stop() may be called from any thread and take effect in order. Events go to
// the attempt's mailbox, in batches per I/O thread. An attempt ends exactly once, in end(): after
// that its transfer id is unknown here and whatever workers still say about it is ignored.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/config.h"
#include "router/attempt.h"
#include "router/mailbox.h"
#include "router/router_metrics.h"
#include "router/timeline.h"
#include "router/worker_pool.h"
#include "scheduler/scheduler.h"

namespace tandem::router {

// How long a phase may show no sign of life although the workers' links are alive.
struct PhaseLimits {
  Duration prefill = std::chrono::seconds(60);  // Plus ten times the prediction
  Duration decode = std::chrono::seconds(30);   // Between two tokens of an attempt
  Duration sweep = std::chrono::milliseconds(200);
};

class Dispatcher final : public PoolListener {
 public:
  struct Parts {
    const Config& config;
    const Clock& clock;
    boost::asio::io_context& io;
    WorkerPool& pool;
    Timeline& timeline;
    const RouterMetrics& metrics;
    int vocab = 0;  // Tokens of workers must lie below
    PhaseLimits limits;
  };

  explicit Dispatcher(const Parts& parts);
  ~Dispatcher() override;

  void submit(AttemptSpec spec);
  // The whole attempt, or one choice of it. Nothing more will be delivered for it, save what is on
  // its way.
  void cancel(TransferId attempt, std::string reason);
  void cancel_choice(TransferId attempt, int choice);
  // Fails all attempts, those to come included.
  void stop(Status reason);

  int queued() const { return queued_.load(std::memory_order_relaxed); }
  int running() const { return running_.load(std::memory_order_relaxed); }

  void worker_up(scheduler::WorkerIndex worker) override;
  void worker_changed(scheduler::WorkerIndex worker) override;
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

  void take(AttemptSpec spec);
  void pump();
  void decide(const scheduler::Decision& decision);
  void command(Attempt& attempt);
  void prompt_done(scheduler::WorkerIndex worker, link::PrefillDone done);
  void tokens(scheduler::WorkerIndex worker, link::Tokens tokens);
  // False when the entry breaks the protocol.
  bool token(Attempt& attempt, link::TokenEntry entry, Outbox& outbox);
  void leg_failed(scheduler::WorkerIndex worker, const link::LegFailed& failed);
  void leg_event(scheduler::WorkerIndex worker, link::LegEvent event);
  void fail(Attempt& attempt, AttemptFailed failure);
  void cancel_legs(const Attempt& attempt, const std::string& reason,
                   scheduler::WorkerIndex except = -1);
  void end(TransferId transfer, std::string_view outcome);
  void close_choice(Attempt& attempt, int choice);
  void post_event(const Attempt& attempt, AttemptEvent event);
  Attempt* find(TransferId transfer);
  void shun(scheduler::WorkerIndex worker);
  void sweep();
  void arm();
  void count();

  const Parts parts_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  Attempts attempts_;
  std::unordered_map<scheduler::WorkerIndex, Shun> shunned_;  // Workers that failed lately
  boost::asio::steady_timer timer_;
  TimePoint armed_for_ = TimePoint::max();
  Status stopped_;
  bool pumping_ = false;
  std::atomic<int> queued_{0};
  std::atomic<int> running_{0};
};

}  // namespace tandem::router

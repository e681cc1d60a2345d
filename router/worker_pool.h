// WorkerPool: the router's links to all workers of the configuration, and what each of them is and
// says.
//
// Owned by the router. Lives on the link thread: handlers and all calls happen there, except those
// marked "any thread". A worker of another model, tokenizer, layout or engine is refused, dialled
// again with back-off, and listed with the reason. stop() closes all links.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/config.h"
#include "link/session.h"
#include "router/attempt.h"
#include "router/model_agreement.h"

namespace tandem::router {

struct WorkerSnapshot {
  std::string address;
  std::string state;         // "ready" | "draining" | "switching" | "connecting" | "refused"
  std::string reason;        // Why it is not ready
  std::string switching_to;  // The role that it is about to have
  link::Hello hello;         // Of this life, or of the last one
  link::Load load;
};

// What decides the numbers that workers compute.
struct ModelBuild {
  std::string build;
  std::string model_digest;
  std::string kv_layout_digest;
};

// Learns of workers, on the link thread.
class PoolListener {
 public:
  virtual ~PoolListener() = default;
  virtual void worker_up(scheduler::WorkerIndex worker) = 0;
  virtual void worker_changed(scheduler::WorkerIndex worker) = 0;
  virtual void worker_measured(scheduler::WorkerIndex worker,
                               const std::vector<link::StepSample>& samples) = 0;
  virtual void worker_down(scheduler::WorkerIndex worker, const Status& why) = 0;
  virtual void worker_frame(scheduler::WorkerIndex worker, link::FrameKind kind,
                            std::string_view body) = 0;
};

class WorkerPool {
 public:
  struct Identity {
    std::string model;             // Served name
    std::string tokenizer_digest;  // Workers must agree
    std::string model_digest;      // Empty: not known here, the majority decides
    int context = 0;               // Workers must hold at least this
  };

  WorkerPool(const Config& config, boost::asio::io_context& io, std::string secret,
             Identity identity);
  ~WorkerPool();

  // Starts dialling. `listener` outlives the links. Link thread, once.
  void start(PoolListener& listener);
  void stop();

  bool is_up(scheduler::WorkerIndex worker) const;
  // Is that life of the worker still going on?
  bool is_up(const WorkerKey& key) const;
  WorkerKey key(scheduler::WorkerIndex worker) const;
  int size() const { return static_cast<int>(workers_.size()); }
  // The worker that has that name, or had it last; -1: none.
  scheduler::WorkerIndex find(const std::string& name) const;
  // Requires: is_up().
  const link::Hello& hello(scheduler::WorkerIndex worker) const;
  const link::Load& load(scheduler::WorkerIndex worker) const;
  bool accepting(scheduler::WorkerIndex worker) const;
  scheduler::WorkerState state(scheduler::WorkerIndex worker) const;
  // Tells the worker to take that role; from now on it is sent nothing, until end_switch().
  Status begin_switch(scheduler::WorkerIndex worker, Role to);
  void end_switch(scheduler::WorkerIndex worker);
  // Of the model that the cluster runs: see ModelAgreement.
  uint64_t generation() const { return agreement_.generation(); }
  // A failure means that the session is closing; worker_down() follows.
  Status send(scheduler::WorkerIndex worker, link::FrameKind kind, std::string_view body);
  // A peer that breaks the protocol.
  void close(scheduler::WorkerIndex worker, Status reason);

  // At least one prefill and one decode worker, or what else can serve a request. Any thread, as
  // is what follows.
  bool ready() const { return ready_.load(std::memory_order_relaxed); }
  // Some worker that generated tokens is away and being dialled.
  bool may_return() const { return may_return_.load(std::memory_order_relaxed); }
  std::vector<WorkerSnapshot> snapshot() const;
  // Of the worker that joined last.
  ModelBuild model_build() const;
  // Tells the worker of that name to "drain" or "resume"; kNotFound without such a worker, and
  // kUnavailable when it is not connected. Waits for the link thread, so it must not be called
  // there.
  Status control(const std::string& name, const std::string& action);
  // Runs `work` on the link thread and waits for what it says, at most for a moment.
  Status run_there(std::function<Status()> work);
  // Brings the series that workers pushed up to date for /metrics.
  void publish_metrics() const;

 private:
  struct Worker;

  link::SessionHandlers handlers(scheduler::WorkerIndex index);
  Status check(scheduler::WorkerIndex index, const link::Hello& hello);
  void opened(scheduler::WorkerIndex index, const link::SessionPtr& session);
  void closed(scheduler::WorkerIndex index, const Status& why);
  void frame(scheduler::WorkerIndex index, link::FrameKind kind, std::string_view body);
  void took_load(scheduler::WorkerIndex index, std::string_view body);
  Status control_here(const std::string& name, const std::string& action);
  void close_strangers();
  void refresh(const Worker& worker, scheduler::WorkerIndex index);
  void refresh_ready();

  const Config& config_;
  boost::asio::io_context& io_;
  const Identity identity_;
  const Epoch epoch_;
  link::LinkContext link_context_;
  PoolListener* listener_ = nullptr;
  std::vector<std::unique_ptr<Worker>> workers_;  // By WorkerIndex; fixed after construction
  ModelAgreement agreement_;
  std::atomic<bool> ready_{false};
  std::atomic<bool> may_return_{false};
  mutable std::mutex snapshot_mutex_;
  std::vector<WorkerSnapshot> snapshots_;  // Guarded by snapshot_mutex_
  ModelBuild model_build_;                 // Guarded by snapshot_mutex_
};

}  // namespace tandem::router

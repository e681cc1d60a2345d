// RoleMoves: carries changes of workers' roles through, those that the scheduler wishes and those
// that an operator asks for: command, watch what the worker says, give up after
// RouterConfig::role_deadline.
//
// Owned by the dispatcher, on the link thread.
#pragma once

#include <map>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "router/router_metrics.h"
#include "router/worker_pool.h"

namespace tandem::router {

class RoleMoves {
 public:
  RoleMoves(WorkerPool& pool, scheduler::Scheduler& scheduler, const RouterMetrics& metrics,
            Duration deadline)
      : pool_(pool), scheduler_(scheduler), metrics_(metrics), deadline_(deadline) {}

  // An operator's. kNotFound, kUnavailable (not connected) or kFailedPrecondition (it changes
  // already, or nobody would be left for its role), with a message for people.
  Status ask(const std::string& worker, Role to, TimePoint now);
  // About once a second: what the scheduler wishes, and what took too long.
  void tick(TimePoint now);
  void worker_changed(scheduler::WorkerIndex worker, TimePoint now);
  void worker_down(scheduler::WorkerIndex worker, TimePoint now);

 private:
  struct Move {
    Role from = Role::kDecode;
    Role to = Role::kDecode;
    TimePoint begun{};
    bool automatic = false;
    bool seen = false;  // The worker has said that it is switching
    std::string error_before;
  };

  Status begin(scheduler::WorkerIndex worker, Role to, TimePoint now, bool automatic,
               const std::string& reason);
  Status check(scheduler::WorkerIndex worker, Role to) const;
  void end(scheduler::WorkerIndex worker, std::string_view outcome, const std::string& reason,
           TimePoint now);

  WorkerPool& pool_;
  scheduler::Scheduler& scheduler_;
  const RouterMetrics& metrics_;
  const Duration deadline_;
  std::map<scheduler::WorkerIndex, Move> moves_;
};

}  // namespace tandem::router

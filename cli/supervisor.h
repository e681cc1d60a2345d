// Supervisor: keeps the processes of a plan running until it is told to stop.
//
// start order and readiness: all processes start in the plan's order; then `ready` is asked until
// it says yes. A process that ends before that ends the start. Later, a process that ends is
// started again after a pause that doubles from 100 ms to 5 s, and shrinks back once it has run for
// 10 s.
// stop: SIGTERM or SIGINT to this process. The router gets SIGTERM first, so that running answers
// finish; when it is gone, or has used up its time, the workers follow. What is left is killed. A
// second signal kills everything at once.
//
// One thread runs everything, but for `ready`, which a helper thread asks. Create one per process:
// it owns the signals SIGTERM, SIGINT, SIGHUP and SIGCHLD, which it blocks for all threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/plan.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/status.h"

namespace tandem::cli {

struct SupervisorOptions {
  std::string program_folder;
  Milliseconds ready_deadline{300000};
  Milliseconds router_stop_deadline{35000};
  Milliseconds worker_stop_deadline{15000};
};

struct SupervisorEvents {
  std::function<void(const ProcessSpec&, pid_t)> on_started;
  std::function<void(const ProcessSpec&, pid_t, const std::string& how)> on_exited;
  std::function<void()> on_ready;
  std::function<void()> on_stopping;
  // A line that the process wrote.
  std::function<void(const ProcessSpec&, std::string_view line)> on_line;
};

// Grows from 100 ms to 5 s; 10 s of life bring it back.
class Backoff {
 public:
  // How long to wait before the next start, after a life of `lived`.
  Duration next(Duration lived);

 private:
  Duration pause_{};
};

class Supervisor {
 public:
  // `ready` is asked from another thread, until it is ok; it must return within a few seconds.
  Supervisor(std::vector<ProcessSpec> processes, SupervisorOptions options, SupervisorEvents events,
             std::function<Status()> ready);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Ok after a stop that was asked for and went well. Everything has ended when it returns.
  Status run();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::cli

// EngineLoop: the loop that all roles share. Takes messages, lets the role work, publishes the
// load, sleeps when there is nothing to do.
//
// Owned by the Worker; run() is the engine thread. Everything reaches it through the Inbox.
#pragma once

#include <atomic>
#include <memory>

#include "worker/role_work.h"

namespace tandem::worker {

class EngineLoop {
 public:
  EngineLoop(const WorkContext& context, std::unique_ptr<RoleWork> work);

  // Until StopRequested, and then until every transfer has quiesced or kStopDeadline has passed.
  void run();
  // No leg is left. Any thread.
  bool idle() const { return idle_.load(); }

 private:
  void handle(Message message);
  void publish();

  const WorkContext context_;
  const std::unique_ptr<RoleWork> work_;
  bool draining_ = false;
  bool stopping_ = false;
  TimePoint stop_by_{};
  std::atomic<bool> idle_{true};
};

}  // namespace tandem::worker

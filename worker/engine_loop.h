// EngineLoop: the loop that all roles share. Takes messages, lets the role work, publishes the
// load, sleeps when there is nothing to do, and changes the role when it is told to.
//
// Owned by the Worker (a second one by a partitioned worker's prefill half); run() is the engine
// thread. Everything reaches it through the Inbox.
//
// A change of role: new legs are refused from the command on, running ones have
// worker.role_drain_ms, what is left fails retryably. When no leg and no transfer is left the old
// work goes and the new role's comes. A role that cannot be had leaves the worker as it was.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "worker/role_work.h"

namespace tandem::worker {

class EngineLoop {
 public:
  using Publish = std::function<void(const link::Load&)>;
  // Makes a role's work. On the engine thread, when no other work is there.
  using TakeRole = std::function<Result<std::unique_ptr<RoleWork>>(Role)>;

  EngineLoop(const WorkContext& context, std::unique_ptr<RoleWork> work, Publish publish,
             TakeRole take_role = {});

  // Until StopRequested, and then until every transfer has quiesced or worker.stop_quiesce_ms have
  // passed.
  void run();
  // No leg is left and no message waits. Any thread.
  bool idle() const;

 private:
  void handle(Message message);
  void ask_role(Role role);
  void follow_switch();
  void publish();
  TimePoint next_wakeup() const;

  const WorkContext context_;
  const Publish publish_;
  const TakeRole take_role_;
  std::unique_ptr<RoleWork> work_;
  Role role_;
  bool draining_ = false;  // Told to
  bool stopping_ = false;
  TimePoint stop_by_{};
  std::optional<Role> switching_to_;
  TimePoint switch_began_{};
  bool switch_forced_ = false;  // What did not end in time was sent elsewhere
  std::string role_error_;
  uint64_t messages_ = 0;
  std::atomic<uint64_t> handled_{0};  // Messages that idle_ knows of
  std::atomic<bool> idle_{true};
};

}  // namespace tandem::worker

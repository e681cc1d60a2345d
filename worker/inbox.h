// Inbox: what the io_context thread and the transfer layer tell the engine thread, in order.
//
// Owned by the Worker. Any thread pushes; the engine thread alone takes. Commands from routers are
// bounded by kCommandsMax; the other messages are bounded by what they are about: a few per leg
// and one per session.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <variant>

#include "common/clock.h"
#include "link/messages.h"
#include "link/session.h"
#include "transfer/stream.h"

namespace tandem::worker {

inline constexpr size_t kCommandsMax = 1024;

struct PrefillArrived {
  link::SessionPtr session;
  link::PrefillCommand command;
};
struct DecodeArrived {
  link::SessionPtr session;
  link::DecodeCommand command;
};
struct CancelArrived {
  const link::Session* session = nullptr;
  link::CancelCommand command;
};
struct RouterGone {
  const link::Session* session = nullptr;
};
struct DrainChanged {
  bool draining = false;
};
// Every leg fails with the reason.
struct LegsEnded {
  Status reason;
};
struct RoleAsked {
  Role role = Role::kDecode;
};
struct StopRequested {};
// Something happened to a transfer, outgoing or incoming.
struct TransferChanged {
  enum class Kind { kGranted, kSealed, kDone, kFailed };
  TransferId transfer;
  Kind kind = Kind::kGranted;
  transfer::SealInfo seal;  // kSealed
  Status status;            // kFailed
};

using Message = std::variant<PrefillArrived, DecodeArrived, CancelArrived, RouterGone, DrainChanged,
                             LegsEnded, RoleAsked, StopRequested, TransferChanged>;

class Inbox {
 public:
  // False when too many commands wait: refuse it.
  bool try_push_command(Message&& command);
  void push(Message&& message);
  // Landed rows wait at the Receiver. Coalesced.
  void note_landed();

  // Everything that is here; waits until there is something or `deadline` (steady clock) has
  // passed.
  std::deque<Message> take(TimePoint deadline);
  bool empty() const;
  uint64_t pushed() const;  // Messages ever

 private:
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Message> messages_;  // Guarded by mutex_
  size_t commands_ = 0;           // Guarded
  uint64_t pushed_ = 0;           // Guarded
  bool landed_ = false;           // Guarded
};

}  // namespace tandem::worker

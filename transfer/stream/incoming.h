// Incoming: one transfer as the receiver keeps it. Guarded by the Receiver's mutex.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "transfer/stream.h"
#include "transfer/stream/coverage.h"
#include "transfer/stream/segment_pool.h"
#include "transfer/stream/stream_messages.h"

namespace tandem::transfer {

struct Incoming {
  enum class State {
    kWaiting,    // One of the expectation and the OPEN is there
    kQueued,     // Both are; waits for landing space
    kStreaming,  // Granted
    kDraining,   // Over for the user; its segment is not yet known to be quiet
  };
  // How a segment ends, once nobody in this process looks at it any more.
  enum class Fate { kUndecided, kReuse, kRetire };

  TransferId transfer;
  State state = State::kWaiting;
  TimePoint created{};
  TimePoint deadline = TimePoint::max();  // Of what it waits for now, or of the whole

  std::optional<Expectation> expected;
  IncomingEvents events;

  link::SessionPtr session;  // That sent the OPEN
  std::optional<OpenMessage> open;

  SegmentPool::Grant grant;
  std::shared_ptr<Channel> credit_channel;  // Null: credits go over the session
  std::optional<Coverage> coverage;
  std::map<uint64_t, uint64_t> held;  // Landing memory in use: offset to end
  std::map<uint64_t, std::pair<uint64_t, bool>>
      units;              // Sequence to (offset, consumed), not yet credited
  uint64_t credited = 0;  // Every unit below is consumed
  uint64_t credit_sent = 0;
  uint64_t freed_bytes = 0;  // Since the last CREDIT
  uint64_t consumed_bytes = 0;
  int taken = 0;     // Units that the user holds
  size_t ready = 0;  // Units that the user may take
  Fate fate = Fate::kUndecided;
  bool sealed = false;
  TimePoint moved{};  // When something last arrived or was consumed
  TimePoint sealed_at{};
  IncomingProgress progress;
};

}  // namespace tandem::transfer

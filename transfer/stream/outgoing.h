// Outgoing: one transfer as the sender keeps it, and the peers and paths it runs over. Guarded by
// the Sender's mutex unless a comment says otherwise.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "transfer/stream.h"
#include "transfer/stream/ring_allocator.h"
#include "transfer/stream/stream_messages.h"
#include "transfer/stream/unit_codec.h"

namespace tandem::transfer {

class SenderCore;

// A channel to one peer over one transport, and the segments of it that were attached (their pages
// are warm).
struct Path {
  Transport* transport = nullptr;
  std::shared_ptr<Channel> channel;
  std::map<std::string, std::shared_ptr<RemoteSegment>> segments;  // By descriptor
  bool broken = false;
};

// A decode worker that was dialled.
struct PeerLink {
  enum class State { kClosed, kDialling, kOpen };

  std::string listen;
  State state = State::kClosed;
  link::SessionPtr session;
  uint64_t generation = 0;  // Of dials: tells handlers of an earlier session apart
  Epoch epoch;
  std::map<std::string, std::shared_ptr<Path>> paths;  // By transport and address
  // Transfers that stopped after their session was lost; told when there is one again.
  std::vector<std::pair<Epoch, EndMessage>> unreported;
};

// Rows that wait for room. They stay in the cache: only where they are is kept.
struct PendingUnit {
  Unit unit;  // Without sequence, offset and checksum
  const std::byte* data = nullptr;
  bool ends_push = false;   // The last unit of a (chunk, layer)
  bool ends_chunk = false;  // ... of the last layer
};

struct Outgoing {
  enum class State {
    kConnecting,  // No session yet
    kOpening,     // OPEN is sent
    kAttaching,   // GRANTED; another thread makes the path
    kStreaming,
    kAborting,  // Stops; not known to be quiet
    kEnded,
  };

  OpenRequest request;
  OutgoingEvents events;
  State state = State::kConnecting;
  std::shared_ptr<PeerLink> peer;
  Status reason;  // Why it aborts
  bool tell_peer = true;

  uint64_t key = 0;
  std::shared_ptr<Path> path;
  std::shared_ptr<RemoteSegment> segment;
  RingAllocator ring{0};
  size_t unit_bytes_max = 0;

  std::deque<PendingUnit> pending;
  std::vector<Unit> unannounced;  // Put, not yet in a LANDED
  uint64_t unannounced_bytes = 0;
  bool announce_due = false;
  bool pumping = false;         // A thread is putting
  bool runnable = false;        // In the Sender's list
  bool waits_for_room = false;  // The front of `pending` was counted as a stall
  bool flushing = false;        // The abort's flush is out
  bool unclean = false;         // A put may not have ended when its channel failed
  int notifications = 0;        // Not yet reported
  bool sealed = false;
  bool seal_sent = false;
  bool done_received = false;  // Takes effect when nobody pumps
  SealInfo seal;
  std::vector<uint64_t> rows;  // Per layer keys then values, for the seal
  std::vector<uint64_t> bytes;

  TimePoint created{};
  TimePoint moved{};  // When anything last happened
  TimePoint pulsed{};
  TimePoint first_put{};
  TimePoint sealed_at{};
  TimePoint abort_deadline{};
  std::atomic<uint64_t> bytes_sent = 0;    // Any thread
  std::atomic<uint64_t> acknowledged = 0;  // Any thread
};

using OutgoingPtr = std::shared_ptr<Outgoing>;

}  // namespace tandem::transfer

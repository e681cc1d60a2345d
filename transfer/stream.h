// The KV stream protocol: how a prefill worker's rows get into a decode worker's cache while they
// are computed.
//
//   sender (prefill worker)                       receiver (decode worker)
//   open(): OPEN over a link session         ->   expect()ed by the router's command, same one-time
//   token
//                                            <-   GRANTED: a segment of landing memory (or DENIED)
//   push() per (chunk, layer): put, then the
//   channel's notify: LANDED{units, crc}     ->   checks bounds and crc; take() hands units to the
//   engine thread,
//                                            <-   CREDIT when their rows are in the cache: room to
//                                            reuse
//   seal(): SEAL{every unit, first tokens}   ->   all units landed and consumed: joined
//   released: rows may be closed             <-   DONE
//   abort(): ABORT; stop putting; QUIESCED   <->  either side; landing memory is reused only after
//   QUIESCED
//
// A segment belongs to one transfer at a time. Out of room, units wait in the sender's own KV
// cache: nothing is copied, and computing goes on. If a sender fails without QUIESCED, its segment
// is retired: never granted again until that process (link session and epoch) is known dead, and
// replaced so that capacity stays.
//
// Threads: link handlers run on the io_context thread; push(), seal(), take() and consumed() on the
// engine thread; all are safe to call concurrently. Events run on the io_context thread, or on the
// caller's inside a call.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/config.h"
#include "common/status.h"
#include "common/types.h"
#include "engine/engine.h"
#include "link/messages.h"
#include "link/session.h"
#include "transfer/transport.h"

namespace tandem::transfer {

// Totals since start; monotone. For metrics.
struct TransferTotals {
  uint64_t bytes = 0;
  uint64_t transfers_done = 0;
  uint64_t failures = 0;
  uint64_t segments_retired = 0;
  double seconds = 0;          // Sum over transfers: first byte to last
  double exposed_seconds = 0;  // Sum: after the last layer was computed
  uint64_t credit_stalls = 0;  // Units that had to wait for room
};

// What the seal carries beside the list of units.
struct SealInfo {
  int tokens =
      0;  // Rows that the receiver must have for every layer (windowed layers: the last ones)
  std::vector<SampledToken> first;  // One per choice
};

// ---- Prefill worker
// ---------------------------------------------------------------------------------

struct OpenRequest {
  TransferId transfer;
  std::string decode_listen;
  std::string decode_name;
  Epoch decode_epoch;
  std::string token;
  int tokens = 0;       // Rows that will be sent
  Duration deadline{};  // For the whole transfer
};

struct OutgoingEvents {
  std::function<void()> on_granted;
  // The peer is joined and has acknowledged every byte: rows may be forgotten. Terminal.
  std::function<void()> on_done;
  // Denied, failed or aborted, and quiesced: no byte of this transfer will move any more and rows
  // may be forgotten. Terminal, exactly one of on_done and on_failed runs.
  std::function<void(const Status&)> on_failed;
};

class OutgoingStream {
 public:
  virtual ~OutgoingStream() = default;
  // Queues one layer's rows and sends what credit allows. Rows stay where they are until a terminal
  // event.
  virtual void push(const LayerRows& rows) = 0;
  // Nothing will be pushed after this.
  virtual void seal(SealInfo info) = 0;
  // Two-phase; ends in on_failed. Idempotent.
  virtual void abort(Status reason) = 0;
  virtual uint64_t bytes_sent() const = 0;
  // Units that the peer has taken out of landing memory. Any thread.
  virtual uint64_t units_acknowledged() const = 0;
};

// Keeps sessions to decode workers and the channels beside them.
class Sender {
 public:
  virtual ~Sender() = default;
  // Dials if need be, with a deadline, and asks for landing space.
  virtual std::shared_ptr<OutgoingStream> open(const OpenRequest& request,
                                               OutgoingEvents events) = 0;
  // Advances network transports; call between chunks and layers. Never blocks.
  virtual void progress() = 0;
  virtual int streams_open() const = 0;
  virtual TransferTotals totals() const = 0;
  // Aborts everything and waits (bounded) for quiescence. Idempotent.
  virtual void stop() = 0;
};

// `transports`: best first, not shared with a Receiver; they outlive the Sender, as do all
// references.
std::unique_ptr<Sender> make_sender(boost::asio::io_context& io, const link::LinkContext& link,
                                    const Config& config, const KvLayout& layout,
                                    std::vector<Transport*> transports);

// ---- Decode worker
// ----------------------------------------------------------------------------------

// Rows that have landed, checked, still in landing memory.
struct LandedUnit {
  TransferId transfer;
  int layer = 0;
  KvPart part = KvPart::kKey;
  int first = 0;
  int count = 0;
  std::span<const std::byte> bytes;  // Valid until consumed()
  uint64_t ticket = 0;
};

struct IncomingEvents {
  std::function<void()> on_granted;
  // take() has something. May be called often; coalesce.
  std::function<void()> on_landed;
  // The sender has computed everything; `info` holds the first tokens. Units may still be on their
  // way.
  std::function<void(const SealInfo&)> on_sealed;
  // Denied, broken, timed out or aborted. Terminal; take() returns nothing of this transfer any
  // more.
  std::function<void(const Status&)> on_failed;
};

struct Expectation {
  TransferId transfer;
  std::string token;
  int tokens = 0;
  Duration deadline{};
};

struct IncomingProgress {
  bool landed_all = false;  // Sealed, and every unit of the seal is in landing memory or beyond
  bool complete = false;    // And every one was consumed()
  TimePoint sealed_at{};    // When the sender said that everything is computed
  uint64_t bytes = 0;
  int64_t first_us = 0;  // Wall clock of the first unit's landing; 0 before
  int64_t last_us = 0;
  std::vector<std::pair<int64_t, int64_t>> landed;  // (us, bytes) at about each tenth
};

class Receiver {
 public:
  virtual ~Receiver() = default;
  // Announces a transfer that the router promised; an OPEN without one waits for it (bounded) and
  // is denied after.
  virtual Status expect(const Expectation& expectation, IncomingEvents events) = 0;
  // The next landed units of all transfers, at most `bytes_max` bytes (at least one unit if there
  // is any). Checks their checksums, which brings them into this core's cache; a wrong one ends its
  // transfer (on_failed, here).
  virtual std::vector<LandedUnit> take(size_t bytes_max) = 0;
  // The unit's rows are copied out: its room may be reused. Owed for every unit taken, also after
  // on_failed: its memory is not given away before. finish() settles what is still owed.
  virtual void consumed(const LandedUnit& unit) = 0;
  virtual IncomingProgress progress_of(TransferId transfer) const = 0;
  // Ends a transfer. With ok: complete and joined, DONE is sent. Otherwise ABORT; the segment
  // returns after QUIESCED. Runs no event; nothing happens for a transfer that is not there (any
  // more).
  virtual void finish(TransferId transfer, const Status& outcome) = 0;
  // Polls transports whose receiving needs it. Never blocks; true when something moved.
  virtual bool poll() = 0;
  virtual int streams_open() const = 0;  // Expected or open
  virtual int64_t landing_bytes_used() const = 0;
  virtual TransferTotals totals() const = 0;

  // Feed from the worker's link listener: frames kOpen.. of a prefill worker's session, and its
  // end.
  virtual void on_frame(const link::SessionPtr& session, link::FrameKind kind,
                        std::string_view body) = 0;
  virtual void on_close(const link::SessionPtr& session, const Status& reason) = 0;
  virtual void stop() = 0;
};

// Allocates and prefaults the landing memory: kResourceExhausted when it does not fit.
// `transports`: as above.
Result<std::unique_ptr<Receiver>> make_receiver(boost::asio::io_context& io, const Config& config,
                                                const KvLayout& layout,
                                                std::vector<Transport*> transports);

}  // namespace tandem::transfer

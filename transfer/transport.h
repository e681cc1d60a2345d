// Transport: moves bytes into a peer's landing memory. Knows nothing of requests, layers or
// credits; the stream protocol (stream.h) is the same over every transport.
//
// A Transport belongs to one process; Segments and Channels come from it and must not outlive it.
// Unless a method says otherwise it may be called from any thread. Callbacks run on the thread that
// calls progress(), or on the transport's own thread when it has one (event_fd() is -1). No lock is
// held while they run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/config.h"
#include "common/status.h"
#include "common/types.h"

namespace tandem::transfer {

struct Capabilities {
  // Bytes may arrive without the receiving process taking part, so nothing here can stop a late
  // write.
  bool one_sided = false;
  bool device_memory = false;
  bool between_hosts = true;  // Worth using towards another host when there is a choice
  size_t message_bytes_max = 0;
};

// Landing memory: prefaulted, writable by any peer that knows its descriptor.
class Segment {
 public:
  virtual ~Segment() = default;
  virtual std::span<std::byte> memory() = 0;
  // What a peer's Channel::attach() needs. Opaque bytes.
  virtual std::string descriptor() const = 0;
};

// A peer's segment as a sender sees it. Always owned by a shared_ptr: puts under way may outlive
// their caller.
class RemoteSegment : public std::enable_shared_from_this<RemoteSegment> {
 public:
  virtual ~RemoteSegment() = default;
  virtual size_t size() const = 0;
  // A put is a memcpy on the calling thread (shared memory): do it where the rows are.
  virtual bool put_is_copy() const = 0;
};

// One sender's path to one peer.
class Channel {
 public:
  virtual ~Channel() = default;
  // Makes a peer's segment writable from here. kInvalidArgument for a descriptor that is not one.
  virtual Result<std::shared_ptr<RemoteSegment>> attach(std::string_view descriptor) = 0;
  // Starts writing `source` at `offset`. The source stays untouched until a later notify() reports.
  // kInvalidArgument when it does not fit the segment.
  virtual Status put(RemoteSegment& segment, size_t offset, std::span<const std::byte> source) = 0;
  // Delivers `message` to the peer's message handler, strictly after all bytes of earlier puts on
  // this channel are visible there (two messages may overtake one another); then `done` runs here
  // (kOk: the peer's memory has the bytes). After a failure every pending and later call reports
  // it.
  virtual Status notify(std::string message, std::function<void(const Status&)> done) = 0;
  // Advances what is pending without blocking; true when something moved. A no-op with an own
  // thread.
  virtual bool progress() = 0;
  // Stops: pending notifications report kCancelled. Idempotent. When it returns, this process
  // starts no further write; what a stopped process may still finish is why segments are retired
  // (stream.h).
  virtual void close() = 0;
};

class Transport {
 public:
  // Valid during the call. Anyone who knows address() can send one: check it.
  using MessageHandler = std::function<void(std::string_view message)>;

  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;  // "ucx" | "tcp" | "local", "fault+tcp", ...
  // What both ends must have in common: the name without decorators.
  std::string_view protocol() const { return name().substr(name().rfind('+') + 1); }
  virtual Capabilities capabilities() const = 0;
  // What a peer's connect() needs. Opaque bytes.
  virtual std::string address() const = 0;
  // kResourceExhausted where memory or /dev/shm cannot hold it, found before the first touch.
  virtual Result<std::unique_ptr<Segment>> allocate(size_t bytes) = 0;
  // Makes memory that somebody else owns, and that outlives the Segment, a landing segment too.
  // Once the Segment is destroyed no byte arrives there. kFailedPrecondition where one_sided.
  virtual Result<std::unique_ptr<Segment>> share(std::span<std::byte> memory) = 0;
  // Does not block beyond local work; a peer that is not there shows at the first notify().
  // `peer_host`: how the link reaches that process, for an address that names no host.
  virtual Result<std::unique_ptr<Channel>> connect(std::string_view peer_address,
                                                   std::string_view peer_host) = 0;
  // Set before the address is given away. Runs while progress() runs, or on the own thread; never
  // twice at once.
  virtual void set_message_handler(MessageHandler handler) = 0;
  // Advances receiving (and all channels) without blocking; true when something moved.
  virtual bool progress() = 0;
  // Readable when progress() has work; -1: has an own thread and needs no polling. Before waiting
  // on it arm() must return true (false: progress() again first).
  virtual int event_fd() const = 0;
  virtual bool arm() = 0;
  // What was chosen, for the log and the status page: lanes, settings.
  virtual std::string description() const = 0;
};

// Makes a transport by name: "ucx", "tcp". kUnavailable with the reason when it cannot work here.
Result<std::unique_ptr<Transport>> make_transport(std::string_view name, const Config& config);
// The transports that this process can offer, best first, each after a short self-test; logs what
// was chosen and what was not, with reasons. `transfer.transport` restricts it; never empty (tcp is
// always there).
std::vector<std::unique_ptr<Transport>> make_transports(const Config& config);

}  // namespace tandem::transfer

// Session: one authenticated, heart-beating connection between two Tandem processes.
//
// Owned by shared_ptr (Asio keeps it alive while operations are pending). Runs on one io_context
// thread; send() and close() may be called from any thread. Handlers run on the io_context thread,
// frames in order; after on_close no handler runs. A session never throws and never blocks.
//
// Both ends prove that they know the shared secret (keyed BLAKE2b over both nonces and hellos)
// before any other frame is looked at. A peer that sends nothing for LinkConfig::silence_max,
// breaks the framing, or does not read until LinkConfig::send_queue_bytes are waiting, is closed
// with the reason.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/config.h"
#include "common/status.h"
#include "link/frame.h"
#include "link/messages.h"

namespace tandem::link {

class Session;
using SessionPtr = std::shared_ptr<Session>;

struct SessionHandlers {
  // Decides on the peer's Hello, before anything else; a failure is sent to it as the reason.
  std::function<Status(const Hello&)> check;
  std::function<void(const SessionPtr&)> on_open;
  // Frames of kinds below kPrefill never get here. `body` is valid during the call.
  std::function<void(const SessionPtr&, FrameKind, std::string_view body)> on_frame;
  // Once, if on_open ran, or if a dial failed (then the session never opened).
  std::function<void(const SessionPtr&, const Status&)> on_close;
};

class Session {
 public:
  virtual ~Session() = default;
  // The peer's hello. Requires: open.
  virtual const Hello& peer() const = 0;
  // Queues a frame. kResourceExhausted (and the session closes) when the peer does not read;
  // kUnavailable after closing.
  virtual Status send(FrameKind kind, std::string_view body) = 0;
  virtual int64_t queued_bytes() const = 0;
  // Idempotent. Tells the peer the reason if it can.
  virtual void close(Status reason) = 0;
};

// What both ends of every session need. Outlives them.
struct LinkContext {
  const LinkConfig& config;
  std::string secret;  // Empty: no authentication (loopback only; load_secret() enforces it)
  std::function<Hello()> self;  // Called for every handshake, on the io_context thread
};

// Reads LinkConfig::secret_file; refuses an empty secret with a listen address beyond loopback.
Result<std::string> load_secret(const LinkConfig& config);

// Dials once. Every outcome arrives through the handlers within LinkConfig::connect_deadline.
SessionPtr dial(boost::asio::io_context& io, const LinkContext& context,
                const std::string& host_port, SessionHandlers handlers);

// Keeps one session to an address alive: dials, and dials again with back-off (100 ms doubling to 2
// s) until stop(). Runs on the io_context thread.
class Dialer {
 public:
  virtual ~Dialer() = default;
  virtual void stop() = 0;
};
std::unique_ptr<Dialer> keep_dialled(boost::asio::io_context& io, const LinkContext& context,
                                     std::string host_port, SessionHandlers handlers);

// Accepts sessions on LinkConfig::listen. At most LinkConfig::connections_max; more are refused
// with the reason.
class Listener {
 public:
  virtual ~Listener() = default;
  // "host:port" actually bound.
  virtual std::string address() const = 0;
  // Closes the port and all its sessions. Idempotent.
  virtual void stop() = 0;
};
Result<std::unique_ptr<Listener>> listen(boost::asio::io_context& io, const LinkContext& context,
                                         SessionHandlers handlers);

}  // namespace tandem::link

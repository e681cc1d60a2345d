// The one implementation of Session, shared by dialling and listening ends. Internal to link/.
//
// Everything runs on the io_context thread except send(), queued_bytes() and close(), which touch
// only what mutex_ guards and post the rest. Life: connecting (dialler) -> handshake -> open ->
// lingering -> closed.
// Lingering: on_close has run, the last frames are on their way, and what the peer still sends is
// thrown away, so that the kernel does not answer it with a reset that would destroy our reason.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "link/auth.h"
#include "link/session.h"

namespace tandem::link {

class SessionImpl final : public Session, public std::enable_shared_from_this<SessionImpl> {
 public:
  using Tcp = boost::asio::ip::tcp;

  SessionImpl(boost::asio::io_context& io, const LinkContext& context, SessionHandlers handlers,
              Side side);

  void start_dial(std::string host_port);
  // `on_gone` runs once, when the socket is closed.
  void start_accepted(Tcp::socket socket, std::function<void()> on_gone);
  // Accepts only to say why not.
  void start_refused(Tcp::socket socket, std::function<void()> on_gone, Status reason);

  // Not introduced yet, and not told to go. On the io_context thread.
  bool in_handshake() const { return state_ == State::kHandshake && !closing_.load(); }

  const Hello& peer() const override { return peer_; }
  Status send(FrameKind kind, std::string_view body) override;
  int64_t queued_bytes() const override;
  void close(Status reason) override;

 private:
  enum class State { kConnecting, kHandshake, kOpen, kLingering, kClosed };
  enum class Tell { kNothing, kRefuse, kGoodbye };

  void connect(const std::vector<Tcp::endpoint>& endpoints);
  void connected();
  void adopt(Tcp::socket socket, std::function<void()> on_gone);
  void arm_handshake_deadline();

  void read_more();
  void on_read(size_t bytes);
  bool take_frames();
  void on_frame(FrameKind kind, std::string_view body);

  void on_handshake_frame(FrameKind kind, std::string_view body);
  void on_hello(std::string_view body);
  void on_challenge(std::string_view body);
  void on_proof(std::string_view body);
  Status check_peer(std::string_view hello_body);
  void open();

  void arm_heartbeat();
  void on_heartbeat(TimePoint expected);

  void push(FrameKind kind, std::string_view body);
  void flush();
  void on_written();

  void fail(Status reason, Tell tell);
  void linger(Tell tell, const Status& reason);
  void close_socket();

  boost::asio::io_context& io_;
  const LinkContext& context_;
  const Side side_;
  SessionHandlers handlers_;
  std::function<void()> on_gone_;
  Tcp::socket socket_;
  Tcp::resolver resolver_;
  boost::asio::steady_timer timer_;
  State state_ = State::kConnecting;
  std::string remote_;  // For messages
  std::string own_hello_;
  std::string peer_hello_;
  Hello peer_;
  TimePoint last_heard_{};
  TimePoint next_ping_{};

  std::string buffer_;  // Received bytes [begin_, end_)
  size_t begin_ = 0;
  size_t end_ = 0;
  std::vector<std::string> writing_;  // Untouched while a write is pending
  std::atomic<bool> closing_{false};  // Stops delivery of frames that are already here

  mutable std::mutex mutex_;
  std::deque<std::string> queue_;  // Guarded by mutex_
  int64_t queued_bytes_ = 0;       // Guarded; includes writing_
  bool sendable_ = false;          // Guarded
  bool flushing_ = false;          // Guarded; a flush is posted or a write is pending
};

}  // namespace tandem::link

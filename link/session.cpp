#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include "common/log.h"
#include "link/session_impl.h"

// Connecting, reading, writing, heartbeats and closing. handshake.cpp has the rest of SessionImpl.
namespace tandem::link {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kReadBytesMin = 4096;
constexpr size_t kBufferBytes = 16384;
constexpr int64_t kHandshakeFrameMax = 16384;
constexpr size_t kWriteFramesMax = 64;  // One writev
constexpr auto kLinger = std::chrono::milliseconds(500);

TimePoint now() { return SystemClock::get().now(); }

}  // namespace

SessionImpl::SessionImpl(asio::io_context& io, const LinkContext& context, SessionHandlers handlers,
                         Side side)
    : io_(io),
      context_(context),
      side_(side),
      handlers_(std::move(handlers)),
      socket_(io),
      resolver_(io),
      timer_(io) {}

void SessionImpl::start_dial(std::string host_port) {
  remote_ = std::move(host_port);
  asio::post(io_, [self = shared_from_this()] {
    if (self->state_ != State::kConnecting) return;
    self->arm_handshake_deadline();
    const auto address = parse_host_port(self->remote_);
    if (!address) return self->fail(address.status(), Tell::kNothing);
    error_code error;
    const auto numeric = asio::ip::make_address(address->host, error);
    if (!error) return self->connect({Tcp::endpoint(numeric, address->port)});
    self->resolver_.async_resolve(
        address->host, std::to_string(address->port), Tcp::resolver::numeric_service,
        [self](error_code failed, const Tcp::resolver::results_type& found) {
          if (self->state_ != State::kConnecting) return;
          if (failed) {
            return self->fail({ErrorCode::kUnavailable, "cannot resolve: " + failed.message()},
                              Tell::kNothing);
          }
          std::vector<Tcp::endpoint> endpoints;
          for (const auto& entry : found) endpoints.push_back(entry.endpoint());
          self->connect(endpoints);
        });
  });
}

void SessionImpl::connect(const std::vector<Tcp::endpoint>& endpoints) {
  asio::async_connect(
      socket_, endpoints, [self = shared_from_this()](error_code error, const Tcp::endpoint&) {
        if (self->state_ != State::kConnecting) return;
        if (error) {
          return self->fail({ErrorCode::kUnavailable, "cannot connect: " + error.message()},
                            Tell::kNothing);
        }
        self->connected();
      });
}

void SessionImpl::connected() {
  error_code ignored;
  // Dialling a free port of this host can, by chance, connect the socket to itself.
  if (socket_.local_endpoint(ignored) == socket_.remote_endpoint(ignored)) {
    return fail({ErrorCode::kUnavailable, "nobody listens there"}, Tell::kNothing);
  }
  socket_.set_option(Tcp::no_delay(true), ignored);
  state_ = State::kHandshake;
  last_heard_ = now();
  buffer_.resize(kBufferBytes);
  Hello hello = context_.self();
  hello.protocol = kProtocolVersion;
  hello.nonce = make_nonce();
  own_hello_ = hello.encode();
  if (side_ == Side::kDialer) push(FrameKind::kHello, own_hello_);
  read_more();
}

void SessionImpl::adopt(Tcp::socket socket, std::function<void()> on_gone) {
  socket_ = std::move(socket);
  on_gone_ = std::move(on_gone);
  error_code ignored;
  const auto endpoint = socket_.remote_endpoint(ignored);
  remote_ = endpoint.address().to_string() + ":" + std::to_string(endpoint.port());
}

void SessionImpl::start_accepted(Tcp::socket socket, std::function<void()> on_gone) {
  adopt(std::move(socket), std::move(on_gone));
  arm_handshake_deadline();
  connected();
}

void SessionImpl::start_refused(Tcp::socket socket, std::function<void()> on_gone, Status reason) {
  adopt(std::move(socket), std::move(on_gone));
  connected();
  fail(std::move(reason), Tell::kRefuse);
}

void SessionImpl::arm_handshake_deadline() {
  timer_.expires_after(context_.config.connect_deadline);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error || (self->state_ != State::kConnecting && self->state_ != State::kHandshake)) return;
    self->fail({ErrorCode::kDeadlineExceeded, "no connection within the deadline"}, Tell::kNothing);
  });
}

// ---- Reading ----

void SessionImpl::read_more() {
  // Room grows with what has arrived, never with what a header claims.
  if (begin_ > 0) {
    std::copy(buffer_.begin() + static_cast<ptrdiff_t>(begin_),
              buffer_.begin() + static_cast<ptrdiff_t>(end_), buffer_.begin());
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() - end_ < kReadBytesMin) buffer_.resize(buffer_.size() * 2);
  socket_.async_read_some(
      asio::buffer(buffer_.data() + end_, buffer_.size() - end_),
      [self = shared_from_this()](error_code error, size_t bytes) {
        if (self->state_ == State::kClosed) return;
        if (!error) return self->on_read(bytes);
        if (self->state_ == State::kLingering) return self->close_socket();
        self->fail({ErrorCode::kUnavailable, error == asio::error::eof
                                                 ? std::string("closed by the peer")
                                                 : "connection lost: " + error.message()},
                   Tell::kNothing);
      });
}

void SessionImpl::on_read(size_t bytes) {
  last_heard_ = now();
  end_ += bytes;
  if (state_ == State::kLingering) {
    begin_ = end_ = 0;
    return read_more();
  }
  if (!take_frames()) return;
  if (begin_ == end_ && buffer_.size() > kBufferBytes * 16) {
    begin_ = end_ = 0;
    buffer_.resize(kBufferBytes);
    buffer_.shrink_to_fit();
  }
  read_more();
}

// False when reading goes on elsewhere or not at all.
bool SessionImpl::take_frames() {
  while (end_ - begin_ >= kFrameHeaderBytes) {
    if (state_ == State::kClosed) return false;
    if (state_ == State::kLingering || closing_.load()) {
      begin_ = end_ = 0;
      return true;
    }
    const std::string_view bytes(buffer_.data() + begin_, end_ - begin_);
    const int64_t frame_max =
        state_ == State::kOpen ? context_.config.frame_bytes_max : kHandshakeFrameMax;
    const auto header = decode_header(bytes.substr(0, kFrameHeaderBytes), frame_max);
    if (!header) {
      fail(header.status().with_context("bad frame"), Tell::kGoodbye);
      continue;
    }
    if (bytes.size() < kFrameHeaderBytes + header->body_bytes) return true;
    begin_ += kFrameHeaderBytes + header->body_bytes;
    on_frame(header->kind, bytes.substr(kFrameHeaderBytes, header->body_bytes));
  }
  return state_ != State::kClosed;
}

void SessionImpl::on_frame(FrameKind kind, std::string_view body) {
  if (state_ == State::kHandshake) return on_handshake_frame(kind, body);
  if (kind >= FrameKind::kPrefill) {
    if (handlers_.on_frame) handlers_.on_frame(shared_from_this(), kind, body);
    return;
  }
  if (kind == FrameKind::kPing) return;
  if (kind == FrameKind::kGoodbye) {
    const auto said = LegFailed::decode(body);
    return fail(said ? Status(said->code, "peer said: " + said->message)
                     : Status(ErrorCode::kUnavailable, "peer said goodbye"),
                Tell::kNothing);
  }
  fail({ErrorCode::kInvalidArgument, "handshake frame on an open session"}, Tell::kGoodbye);
}

// ---- Heartbeats ----

void SessionImpl::arm_heartbeat() {
  const TimePoint next = std::min(next_ping_, last_heard_ + context_.config.silence_max);
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this(), next](error_code error) {
    if (!error && self->state_ == State::kOpen) self->on_heartbeat(next);
  });
}

void SessionImpl::on_heartbeat(TimePoint expected) {
  const TimePoint at = now();
  // This process was stopped or starved itself: what the peer sent meanwhile has not been read yet.
  if (at - expected > context_.config.heartbeat) last_heard_ = at;
  if (at - last_heard_ >= context_.config.silence_max) {
    return fail({ErrorCode::kDeadlineExceeded,
                 "silent for " + std::to_string(context_.config.silence_max.count()) + " ms"},
                Tell::kGoodbye);
  }
  if (at >= next_ping_) {
    next_ping_ = at + context_.config.heartbeat;
    // Frames that wait are as good as a ping, and a stuck peer's queue must not grow by pings.
    if (queued_bytes() == 0) push(FrameKind::kPing, {});
  }
  arm_heartbeat();
}

// ---- Writing ----

Status SessionImpl::send(FrameKind kind, std::string_view body) {
  if (static_cast<int64_t>(body.size()) >= context_.config.frame_bytes_max) {
    return {ErrorCode::kInvalidArgument, "frame longer than link.frame_bytes_max"};
  }
  std::string frame = encode_frame(kind, body);
  const auto bytes = static_cast<int64_t>(frame.size());
  bool post_flush = false;
  bool overflow = false;
  {
    const std::lock_guard lock(mutex_);
    if (!sendable_) return {ErrorCode::kUnavailable, "link to the peer is closed"};
    overflow = queued_bytes_ + bytes > context_.config.send_queue_bytes;
    if (overflow) {
      sendable_ = false;
    } else {
      queue_.push_back(std::move(frame));
      queued_bytes_ += bytes;
      post_flush = !std::exchange(flushing_, true);
    }
  }
  if (overflow) {
    Status reason(ErrorCode::kResourceExhausted, "the peer does not read: send queue is full");
    closing_.store(true);
    asio::post(io_, [self = shared_from_this(), reason] { self->fail(reason, Tell::kNothing); });
    return reason;
  }
  if (post_flush) asio::post(io_, [self = shared_from_this()] { self->flush(); });
  return {};
}

int64_t SessionImpl::queued_bytes() const {
  const std::lock_guard lock(mutex_);
  return queued_bytes_;
}

// For the session's own frames, which no limit holds back. On the io_context thread.
void SessionImpl::push(FrameKind kind, std::string_view body) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(encode_frame(kind, body));
    queued_bytes_ += static_cast<int64_t>(queue_.back().size());
    if (std::exchange(flushing_, true)) return;
  }
  flush();
}

void SessionImpl::flush() {
  TANDEM_CHECK(writing_.empty(), "one write at a time");
  bool empty = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kClosed) {
      queue_.clear();
      queued_bytes_ = 0;
    }
    while (!queue_.empty() && writing_.size() < kWriteFramesMax) {
      writing_.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    empty = writing_.empty();
    if (empty) flushing_ = false;
  }
  if (empty) {
    error_code ignored;
    if (state_ == State::kLingering) socket_.shutdown(Tcp::socket::shutdown_send, ignored);
    return;
  }
  std::vector<asio::const_buffer> buffers;
  buffers.reserve(writing_.size());
  for (const std::string& frame : writing_) buffers.emplace_back(asio::buffer(frame));
  asio::async_write(socket_, buffers, [self = shared_from_this()](error_code error, size_t) {
    self->on_written();
    if (!error) return self->flush();
    self->fail({ErrorCode::kUnavailable, "cannot write: " + error.message()}, Tell::kNothing);
    self->close_socket();
  });
}

void SessionImpl::on_written() {
  int64_t bytes = 0;
  for (const std::string& frame : writing_) bytes += static_cast<int64_t>(frame.size());
  writing_.clear();
  const std::lock_guard lock(mutex_);
  queued_bytes_ -= bytes;
}

// ---- Closing ----

void SessionImpl::close(Status reason) {
  {
    const std::lock_guard lock(mutex_);
    sendable_ = false;
  }
  closing_.store(true);
  // Posted even on the io_context thread: handlers never run inside a caller of close().
  asio::post(io_, [self = shared_from_this(), reason = std::move(reason)] {
    self->fail(reason, Tell::kGoodbye);
  });
}

void SessionImpl::fail(Status reason, Tell tell) {
  if (state_ == State::kLingering || state_ == State::kClosed) return;
  const State before = std::exchange(state_, State::kLingering);
  {
    const std::lock_guard lock(mutex_);
    sendable_ = false;
  }
  resolver_.cancel();
  if (before == State::kOpen || before == State::kHandshake) {
    if (before == State::kHandshake && tell == Tell::kGoodbye) tell = Tell::kRefuse;
    linger(tell, reason);
  } else {
    close_socket();
  }
  reason = reason.with_context("link " + remote_);
  if (side_ == Side::kListener && before == State::kHandshake) {
    log_warn("event=link_refused peer={} reason={}", remote_, tandem::quoted(reason.message()));
  }
  // Handlers often own the session: letting go of them here breaks the cycle.
  const SessionHandlers handlers = std::exchange(handlers_, {});
  const bool tell_owner = before == State::kOpen || side_ == Side::kDialer;
  if (tell_owner && handlers.on_close) handlers.on_close(shared_from_this(), reason);
}

void SessionImpl::linger(Tell tell, const Status& reason) {
  if (tell == Tell::kNothing) return close_socket();
  LegFailed said;
  said.code = reason.code();
  said.message = reason.message();
  push(tell == Tell::kRefuse ? FrameKind::kRefuse : FrameKind::kGoodbye, said.encode());
  timer_.expires_after(kLinger);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error) self->close_socket();
  });
}

void SessionImpl::close_socket() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  if (on_gone_) std::exchange(on_gone_, {})();
}

SessionPtr dial(asio::io_context& io, const LinkContext& context, const std::string& host_port,
                SessionHandlers handlers) {
  auto session = std::make_shared<SessionImpl>(io, context, std::move(handlers), Side::kDialer);
  session->start_dial(host_port);
  return session;
}

}  // namespace tandem::link

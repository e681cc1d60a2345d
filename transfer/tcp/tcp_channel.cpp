#include "transfer/tcp/tcp_channel.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <vector>

namespace tandem::transfer {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr auto kConnectDeadline = std::chrono::seconds(2);
constexpr size_t kPartsPerWrite = 64;
constexpr int kWritesPerTurn = 16;

struct RemoteTcpSegment final : RemoteSegment {
  explicit RemoteTcpSegment(TcpDescriptor from) : descriptor(from) {}
  size_t size() const override { return descriptor.size; }
  bool put_is_copy() const override { return false; }

  const TcpDescriptor descriptor;
};

// One frame on its way. `message` holds the bytes of a message, `source` points at those of a put.
struct Outgoing {
  TcpHeader header;
  std::span<const std::byte> source;
  std::string message;
  std::function<void(const Status&)> done;

  std::span<const std::byte> payload() const {
    return header.kind == TcpKind::kPut ? source : std::as_bytes(std::span(message));
  }
};

// The connection's state. Methods run on the transport's thread unless they say otherwise.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::io_context& io, TcpAddress address)
      : io_(io), address_(std::move(address)), resolver_(io), socket_(io), deadline_(io) {}

  void start() {
    deadline_.expires_after(kConnectDeadline);
    deadline_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->fail(Status(ErrorCode::kDeadlineExceeded, "no TCP connection in time"));
    });
    resolver_.async_resolve(
        address_.host, std::to_string(address_.port),
        [self = shared_from_this()](const boost::system::error_code& error, const auto& found) {
          if (error) return self->fail_with("resolving", error);
          asio::async_connect(self->socket_, found,
                              [self](const boost::system::error_code& failure, const auto&) {
                                self->on_connected(failure);
                              });
        });
  }

  // Any thread.
  Status enqueue(Outgoing outgoing) {
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok()) return failure_;
      arrived_.push_back(std::move(outgoing));
      wake = !std::exchange(scheduled_, true);
    }
    if (wake) asio::post(io_, [self = shared_from_this()] { self->write(); });
    return {};
  }

  // Any thread. When it returns no source is read any more.
  void close() {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      first = failure_.ok();
      if (first) failure_ = Status(ErrorCode::kCancelled, "the channel is closed");
    }
    { const std::lock_guard wait_for_write(write_mutex_); }
    if (first) asio::post(io_, [self = shared_from_this()] { self->end(); });
  }

 private:
  Status failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  void fail_with(std::string_view what, const boost::system::error_code& error) {
    fail(Status(ErrorCode::kUnavailable, fmt::format("tcp: {}: {}", what, error.message())));
  }

  void fail(Status reason) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_.ok()) failure_ = std::move(reason);
    }
    end();
  }

  // Reports to everybody who waits. Idempotent.
  void end() {
    boost::system::error_code ignored;
    socket_.close(ignored);
    resolver_.cancel();
    deadline_.cancel();
    std::deque<Outgoing> rest = std::exchange(unacknowledged_, {});
    for (Outgoing& outgoing : std::exchange(writing_, {})) rest.push_back(std::move(outgoing));
    Status reason;
    {
      const std::lock_guard lock(mutex_);
      reason = failure_;
      for (Outgoing& outgoing : std::exchange(arrived_, {})) rest.push_back(std::move(outgoing));
    }
    for (const Outgoing& outgoing : rest) {
      if (outgoing.done) outgoing.done(reason);
    }
  }

  void on_connected(const boost::system::error_code& error) {
    deadline_.cancel();
    if (error) return fail_with("connecting", error);
    if (!failure().ok()) return end();
    tune_socket(socket_.native_handle());
    const std::string preamble = std::string(kTcpMagic) + address_.key;
    // A fresh socket's buffer holds these few bytes.
    if (::send(socket_.native_handle(), preamble.data(), preamble.size(), MSG_NOSIGNAL) !=
        ssize_t(preamble.size())) {
      return fail(Status(ErrorCode::kUnavailable, "tcp: the peer closed at once"));
    }
    connected_ = true;
    wait_acknowledgement();
    write();
  }

  void write() {
    for (int turn = 0; turn < kWritesPerTurn; ++turn) {
      {
        const std::lock_guard lock(mutex_);
        for (Outgoing& outgoing : std::exchange(arrived_, {}))
          writing_.push_back(std::move(outgoing));
        if (!connected_ || writing_.empty() || waiting_writable_) {
          scheduled_ = false;
          return;
        }
      }
      const ssize_t sent = send_some();
      if (sent < 0 && errno == EAGAIN) return wait_writable();
      if (sent < 0 && errno != EINTR) {
        const int code = errno;
        return fail(Status(ErrorCode::kUnavailable,
                           fmt::format("tcp: {}", std::generic_category().message(code))));
      }
      if (sent > 0) drop_written(size_t(sent));
    }
    asio::post(io_, [self = shared_from_this()] { self->write(); });
  }

  ssize_t send_some() {
    std::array<iovec, kPartsPerWrite> parts{};
    size_t count = 0;
    size_t skip = written_;
    const auto add = [&](const void* data, size_t size) {
      const size_t skipped = std::min(skip, size);
      skip -= skipped;
      if (size == skipped) return;
      parts[count++] = {const_cast<char*>(static_cast<const char*>(data)) + skipped,
                        size - skipped};
    };
    for (auto it = writing_.begin(); it != writing_.end() && count + 2 <= kPartsPerWrite; ++it) {
      add(&it->header, sizeof it->header);
      add(it->payload().data(), it->payload().size());
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const std::lock_guard lock(write_mutex_);
    if (!failure().ok()) {
      errno = EPIPE;
      return -1;
    }
    return ::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  void drop_written(size_t count) {
    written_ += count;
    while (!writing_.empty()) {
      Outgoing& front = writing_.front();
      const size_t whole = sizeof front.header + front.payload().size();
      if (written_ < whole) return;
      written_ -= whole;
      if (front.done) unacknowledged_.push_back(std::move(front));
      writing_.pop_front();
    }
  }

  void wait_writable() {
    waiting_writable_ = true;
    socket_.async_wait(tcp::socket::wait_write,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         self->waiting_writable_ = false;
                         if (!error) self->write();
                       });
  }

  void wait_acknowledgement() {
    socket_.async_wait(tcp::socket::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         if (!error) self->on_acknowledged();
                       });
  }

  void on_acknowledged() {
    std::array<char, 512> buffer;
    const ssize_t received =
        ::recv(socket_.native_handle(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (received == 0) return fail(Status(ErrorCode::kUnavailable, "tcp: the peer closed"));
    if (received < 0 && errno != EAGAIN && errno != EINTR) {
      const int code = errno;
      return fail(Status(ErrorCode::kUnavailable,
                         fmt::format("tcp: {}", std::generic_category().message(code))));
    }
    if (received > 0) partial_.append(buffer.data(), size_t(received));
    size_t used = 0;
    for (uint64_t sequence = 0; partial_.size() - used >= sizeof sequence;
         used += sizeof sequence) {
      std::memcpy(&sequence, partial_.data() + used, sizeof sequence);
      if (unacknowledged_.empty() || unacknowledged_.front().header.target != sequence) {
        return fail(Status(ErrorCode::kDataLoss, "tcp: an acknowledgement out of order"));
      }
      const Outgoing outgoing = std::move(unacknowledged_.front());
      unacknowledged_.pop_front();
      outgoing.done(Status());
    }
    partial_.erase(0, used);
    if (socket_.is_open()) wait_acknowledgement();
  }

  asio::io_context& io_;
  const TcpAddress address_;
  tcp::resolver resolver_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  bool connected_ = false;
  bool waiting_writable_ = false;
  std::deque<Outgoing> writing_;
  size_t written_ = 0;                   // Bytes of writing_'s front that are out
  std::deque<Outgoing> unacknowledged_;  // Messages
  std::string partial_;                  // The beginning of an acknowledgement

  std::mutex write_mutex_;  // Held while a source is read
  std::mutex mutex_;
  std::vector<Outgoing> arrived_;  // Guarded by mutex_
  bool scheduled_ = false;         // Guarded by mutex_: write() is coming
  Status failure_;                 // Guarded by mutex_
};

class TcpChannel final : public Channel {
 public:
  explicit TcpChannel(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}
  ~TcpChannel() override { close(); }

  Result<std::shared_ptr<RemoteSegment>> attach(std::string_view descriptor) override {
    auto decoded = TcpDescriptor::decode(descriptor);
    if (!decoded) return decoded.status();
    return std::shared_ptr<RemoteSegment>(std::make_shared<RemoteTcpSegment>(*decoded));
  }

  Status put(RemoteSegment& segment, size_t offset, std::span<const std::byte> source) override {
    auto* target = dynamic_cast<RemoteTcpSegment*>(&segment);
    if (target == nullptr || source.empty() || offset > target->size() ||
        source.size() > target->size() - offset) {
      return Status(ErrorCode::kInvalidArgument, "a put beyond its segment");
    }
    const TcpHeader header{TcpKind::kPut, 0, target->descriptor.segment, offset, source.size()};
    return connection_->enqueue({header, source, {}, nullptr});
  }

  Status notify(std::string message, std::function<void(const Status&)> done) override {
    if (message.empty() || message.size() > kTcpMessageBytesMax) {
      return Status(ErrorCode::kInvalidArgument, "a message of no fitting length");
    }
    const std::lock_guard lock(mutex_);
    const TcpHeader header{TcpKind::kMessage, 0, ++sequence_, 0, message.size()};
    return connection_->enqueue({header, {}, std::move(message), std::move(done)});
  }

  bool progress() override { return false; }
  void close() override { connection_->close(); }

 private:
  const std::shared_ptr<Connection> connection_;
  std::mutex mutex_;
  uint64_t sequence_ = 0;  // Guarded by mutex_, so that sequences are queued in order
};

}  // namespace

std::unique_ptr<Channel> make_tcp_channel(asio::io_context& io, TcpAddress address) {
  auto connection = std::make_shared<Connection>(io, std::move(address));
  asio::post(io, [connection] { connection->start(); });
  return std::make_unique<TcpChannel>(std::move(connection));
}

}  // namespace tandem::transfer

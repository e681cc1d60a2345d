#include "transfer/tcp/tcp_inbound.h"

#include <sodium/utils.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>

#include "common/log.h"
#include "common/random.h"

namespace tandem::transfer {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr size_t kConnectionsMax = 256;
constexpr auto kPreambleDeadline = std::chrono::seconds(2);
constexpr auto kAcceptRetry = std::chrono::milliseconds(100);
constexpr int kReceivesPerTurn = 32;  // Then other connections get theirs

}  // namespace

uint64_t TcpSegments::add(std::span<std::byte> memory) {
  const uint64_t segment = random_u64();
  const std::lock_guard lock(mutex_);
  segments_[segment] = memory;
  return segment;
}

void TcpSegments::remove(uint64_t segment) {
  const std::lock_guard lock(mutex_);
  segments_.erase(segment);
}

bool TcpSegments::fits(uint64_t segment, uint64_t offset, uint64_t length) const {
  const std::lock_guard lock(mutex_);
  const auto found = segments_.find(segment);
  return found != segments_.end() && offset <= found->second.size() &&
         length <= found->second.size() - offset;
}

ssize_t TcpSegments::receive(int fd, uint64_t segment, uint64_t offset, uint64_t length,
                             std::span<char> next) {
  const std::lock_guard lock(mutex_);
  const auto found = segments_.find(segment);
  if (found == segments_.end()) {
    errno = ESTALE;
    return -1;
  }
  std::array<iovec, 2> parts{{{found->second.data() + offset, length}, {next.data(), next.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return ::recvmsg(fd, &message, MSG_DONTWAIT);
}

// One accepted connection; its pending waits keep it alive.
class TcpInbound::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(TcpInbound& owner, tcp::socket socket)
      : owner_(owner), socket_(std::move(socket)), deadline_(socket_.get_executor()) {}

  void start() {
    tune_socket(socket_.native_handle());
    deadline_.expires_after(kPreambleDeadline);
    deadline_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->close("no key in time");
    });
    wait_readable();
  }

  void close(std::string_view reason) {
    if (!socket_.is_open()) return;
    if (!reason.empty()) log_warn("event=tcp_transport_closed reason={}", tandem::quoted(reason));
    boost::system::error_code ignored;
    socket_.close(ignored);
    deadline_.cancel();
  }

 private:
  void wait_readable() {
    socket_.async_wait(tcp::socket::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         if (!error) self->on_readable();
                       });
  }

  void on_readable() {
    for (int turn = 0; turn < kReceivesPerTurn && socket_.is_open(); ++turn) {
      const ssize_t received = receive();
      if (received < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (received < 0 && errno == ESTALE) return close("bytes for a segment that is gone");
      if (received <= 0) return close("");
      if (const char* wrong = advance(size_t(received)); wrong != nullptr) return close(wrong);
    }
    if (socket_.is_open()) wait_readable();
  }

  // Reads the rest of the payload and the header behind it in one call.
  ssize_t receive() {
    const int fd = socket_.native_handle();
    if (!open_) {
      return ::recv(fd, preamble_.data() + have_, preamble_.size() - have_, MSG_DONTWAIT);
    }
    const std::span<char> head(reinterpret_cast<char*>(&header_), sizeof header_);
    if (left_ == 0) return ::recv(fd, head.data() + have_, head.size() - have_, MSG_DONTWAIT);
    if (put_.kind == TcpKind::kPut) {
      return owner_.segments_.receive(fd, put_.target, put_.offset + put_.length - left_, left_,
                                      head);
    }
    return ::recv(fd, message_.data() + message_.size() - left_, left_, MSG_DONTWAIT);
  }

  // Accounts for `count` received bytes. Returns what is wrong with them, or null.
  const char* advance(size_t count) {
    if (!open_) {
      have_ += count;
      return have_ == preamble_.size() ? authenticate() : nullptr;
    }
    if (left_ > 0) {
      const size_t payload = std::min<size_t>(count, left_);
      left_ -= payload;
      count -= payload;
      if (left_ == 0 && put_.kind == TcpKind::kMessage) deliver();
    }
    have_ += count;
    if (have_ < sizeof header_) return nullptr;
    have_ = 0;
    return begin_frame();
  }

  const char* authenticate() {
    const std::string expected = std::string(kTcpMagic) + owner_.key_;
    if (::sodium_memcmp(preamble_.data(), expected.data(), expected.size()) != 0)
      return "wrong key";
    open_ = true;
    have_ = 0;
    deadline_.cancel();
    return nullptr;
  }

  const char* begin_frame() {
    put_ = header_;
    if (put_.zero != 0 || put_.length == 0) return "a malformed frame";
    if (put_.kind == TcpKind::kPut) {
      if (!owner_.segments_.fits(put_.target, put_.offset, put_.length)) {
        return "a put beyond every segment";
      }
    } else if (put_.kind == TcpKind::kMessage) {
      if (put_.length > kTcpMessageBytesMax) return "a message too long";
      message_.resize(put_.length);
    } else {
      return "a frame of unknown kind";
    }
    left_ = put_.length;
    return nullptr;
  }

  void deliver() {
    owner_.handle(message_);
    acknowledged_.append(reinterpret_cast<const char*>(&put_.target), sizeof put_.target);
    send_acknowledgements();
  }

  // A sender that reads no acknowledgement fills its own window and stops; `acknowledged_` stays
  // that small.
  void send_acknowledgements() {
    const ssize_t sent = ::send(socket_.native_handle(), acknowledged_.data(), acknowledged_.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) acknowledged_.erase(0, size_t(sent));
    if (acknowledged_.empty() || waiting_writable_) return;
    waiting_writable_ = true;
    socket_.async_wait(tcp::socket::wait_write,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         self->waiting_writable_ = false;
                         if (!error) self->send_acknowledgements();
                       });
  }

  TcpInbound& owner_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  bool open_ = false;
  std::array<char, kTcpPreambleBytes> preamble_{};
  TcpHeader header_;   // Being read
  size_t have_ = 0;    // Bytes of the preamble or of header_ that are there
  TcpHeader put_;      // The frame whose payload is being read
  uint64_t left_ = 0;  // Bytes of that payload still to come
  std::string message_;
  std::string acknowledged_;
  bool waiting_writable_ = false;
};

TcpInbound::TcpInbound(asio::io_context& io, TcpSegments& segments, std::string key)
    : acceptor_(io), retry_(io), segments_(segments), key_(std::move(key)) {}

TcpInbound::~TcpInbound() {
  for (const auto& weak : connections_) {
    if (const auto connection = weak.lock()) connection->close("");
  }
}

Status TcpInbound::listen(const std::string& host) {
  boost::system::error_code error;
  tcp::resolver resolver(acceptor_.get_executor());
  const auto found = resolver.resolve(host, "0", tcp::resolver::passive, error);
  if (error || found.empty()) {
    return Status(ErrorCode::kUnavailable, "cannot resolve " + host + ": " + error.message());
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  if (error) {
    return Status(ErrorCode::kUnavailable, "cannot listen on " + host + ": " + error.message());
  }
  port_ = acceptor_.local_endpoint().port();
  accept();
  return {};
}

void TcpInbound::accept() {
  acceptor_.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) return accept_later();
    std::erase_if(connections_, [](const auto& weak) { return weak.expired(); });
    if (connections_.size() < kConnectionsMax) {
      auto connection = std::make_shared<Connection>(*this, std::move(socket));
      connections_.push_back(connection);
      connection->start();
    }
    accept();
  });
}

// Out of descriptors, most likely: asking again at once would spin.
void TcpInbound::accept_later() {
  retry_.expires_after(kAcceptRetry);
  retry_.async_wait([this](const boost::system::error_code& error) {
    if (!error) accept();
  });
}

void TcpInbound::set_message_handler(Transport::MessageHandler handler) {
  auto shared = std::make_shared<const Transport::MessageHandler>(std::move(handler));
  const std::lock_guard lock(handler_mutex_);
  handler_ = std::move(shared);
}

void TcpInbound::handle(std::string_view message) {
  std::shared_ptr<const Transport::MessageHandler> handler;
  {
    const std::lock_guard lock(handler_mutex_);
    handler = handler_;
  }
  if (handler && *handler) (*handler)(message);
}

}  // namespace tandem::transfer

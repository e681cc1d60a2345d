#include <boost/asio/dispatch.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>

#include "common/log.h"
#include "link/session_impl.h"

namespace tandem::link {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Connections above the limit that are just being told so.
constexpr size_t kRefusingMax = 64;
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

// Shared with its sessions, which report when they are gone.
class AcceptLoop : public std::enable_shared_from_this<AcceptLoop> {
 public:
  AcceptLoop(asio::io_context& io, const LinkContext& context, SessionHandlers handlers)
      : io_(io), context_(context), handlers_(std::move(handlers)), acceptor_(io), timer_(io) {}

  Status bind(const tcp::endpoint& endpoint) {
    error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
    if (error) return {ErrorCode::kUnavailable, error.message()};
    return {};
  }

  tcp::endpoint endpoint() const {
    error_code ignored;
    return acceptor_.local_endpoint(ignored);
  }

  void accept() {
    acceptor_.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
      if (self->stopped_) return;
      if (!error) {
        self->admit(std::move(socket));
        return self->accept();
      }
      // Out of descriptors, or the peer gave up already: try again shortly, do not spin.
      log_warn("event=accept_failed reason={}", tandem::quoted(error.message()));
      self->timer_.expires_after(kAcceptPause);
      self->timer_.async_wait([self](error_code cancelled) {
        if (!cancelled && !self->stopped_) self->accept();
      });
    });
  }

  void stop() {
    if (std::exchange(stopped_, true)) return;
    error_code ignored;
    acceptor_.close(ignored);
    timer_.cancel();
    const auto sessions = sessions_;
    for (const auto& [key, session] : sessions) {
      session->close({ErrorCode::kUnavailable, "the peer shuts down"});
    }
  }

 private:
  void admit(tcp::socket socket) {
    const auto limit = static_cast<size_t>(context_.config.connections_max);
    if (sessions_.size() >= limit + kRefusingMax) return;  // Closes the socket.
    const bool full = sessions_.size() >= limit && !displace_silent();
    auto session = std::make_shared<SessionImpl>(
        io_, context_, full ? SessionHandlers{} : handlers_, Side::kListener);
    const uint64_t key = accepted_++;
    sessions_.emplace(key, session);
    // Weak: sessions_ owns the session.
    auto on_gone = [weak = weak_from_this(), key] {
      if (const auto self = weak.lock()) self->sessions_.erase(key);
    };
    if (full) {
      session->start_refused(
          std::move(socket), std::move(on_gone),
          {ErrorCode::kResourceExhausted,
           "all " + std::to_string(limit) + " connections (link.connections_max) are in use"});
    } else {
      session->start_accepted(std::move(socket), std::move(on_gone));
    }
  }

  // A connection that has proved nothing must not keep out one that may: the oldest such goes.
  bool displace_silent() {
    for (const auto& [key, session] : sessions_) {
      if (!session->in_handshake()) continue;
      session->close({ErrorCode::kResourceExhausted, "the connection is needed for another"});
      return true;
    }
    return false;
  }

  asio::io_context& io_;
  const LinkContext& context_;
  const SessionHandlers handlers_;
  tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  std::map<uint64_t, std::shared_ptr<SessionImpl>> sessions_;  // In order of arrival
  uint64_t accepted_ = 0;
  bool stopped_ = false;
};

class ListenerImpl final : public Listener {
 public:
  ListenerImpl(asio::io_context& io, std::shared_ptr<AcceptLoop> loop, std::string address)
      : io_(io), loop_(std::move(loop)), address_(std::move(address)) {}
  ~ListenerImpl() override { stop(); }
  std::string address() const override { return address_; }
  void stop() override {
    if (loop_) asio::dispatch(io_, [loop = std::exchange(loop_, nullptr)] { loop->stop(); });
  }

 private:
  asio::io_context& io_;
  std::shared_ptr<AcceptLoop> loop_;
  const std::string address_;
};

Result<tcp::endpoint> resolve(asio::io_context& io, const HostPort& at) {
  error_code error;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(at.host, std::to_string(at.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return Status(ErrorCode::kInvalidArgument, "cannot resolve '" + at.host + "'");
  }
  return found.begin()->endpoint();
}

}  // namespace

Result<std::unique_ptr<Listener>> listen(asio::io_context& io, const LinkContext& context,
                                         SessionHandlers handlers) {
  const std::string what = "cannot listen on " + context.config.listen;
  const auto at = parse_host_port(context.config.listen);
  if (!at) return at.status().with_context(what);
  const auto endpoint = resolve(io, *at);
  if (!endpoint) return endpoint.status().with_context(what);
  auto loop = std::make_shared<AcceptLoop>(io, context, std::move(handlers));
  TANDEM_RETURN_IF_ERROR(loop->bind(*endpoint).with_context(what));
  const auto bound = loop->endpoint();
  const std::string host =
      at->host.find(':') == std::string::npos ? at->host : "[" + at->host + "]";
  asio::dispatch(io, [loop] { loop->accept(); });
  return std::unique_ptr<Listener>(std::make_unique<ListenerImpl>(
      io, std::move(loop), host + ":" + std::to_string(bound.port())));
}

}  // namespace tandem::link

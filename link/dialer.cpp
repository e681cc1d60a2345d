#include <boost/asio/dispatch.hpp>
#include <boost/asio/steady_timer.hpp>

#include "common/clock.h"
#include "link/session.h"

namespace tandem::link {
namespace {

namespace asio = boost::asio;

constexpr auto kBackoffMin = std::chrono::milliseconds(100);
constexpr auto kBackoffMax = std::chrono::milliseconds(2000);

// Shared with the handlers of the session that is being dialled.
class DialLoop : public std::enable_shared_from_this<DialLoop> {
 public:
  DialLoop(asio::io_context& io, const LinkContext& context, std::string host_port,
           SessionHandlers handlers)
      : io_(io),
        context_(context),
        host_port_(std::move(host_port)),
        handlers_(std::move(handlers)),
        timer_(io) {}

  void attempt() {
    if (stopped_) return;
    SessionHandlers handlers = handlers_;
    handlers.on_open = [self = shared_from_this()](const SessionPtr& session) {
      self->opened_at_ = SystemClock::get().now();
      if (self->handlers_.on_open) self->handlers_.on_open(session);
    };
    handlers.on_close = [self = shared_from_this()](const SessionPtr& session,
                                                    const Status& reason) {
      self->session_.reset();
      if (self->handlers_.on_close) self->handlers_.on_close(session, reason);
      self->again();
    };
    opened_at_ = TimePoint{};
    session_ = dial(io_, context_, host_port_, std::move(handlers));
  }

  void stop() {
    stopped_ = true;
    timer_.cancel();
    if (const auto session = session_.lock())
      session->close({ErrorCode::kCancelled, "this side stops"});
  }

 private:
  void again() {
    if (stopped_) return;
    // A session that was refused or lost at once does not count as a success.
    const bool lasted =
        opened_at_ != TimePoint{} && SystemClock::get().now() - opened_at_ > kBackoffMax;
    if (lasted) backoff_ = kBackoffMin;
    timer_.expires_after(backoff_);
    backoff_ = std::min(backoff_ * 2, kBackoffMax);
    timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (!error) self->attempt();
    });
  }

  asio::io_context& io_;
  const LinkContext& context_;
  const std::string host_port_;
  const SessionHandlers handlers_;
  asio::steady_timer timer_;
  std::weak_ptr<Session> session_;  // Its handlers own this loop
  TimePoint opened_at_{};
  std::chrono::milliseconds backoff_ = kBackoffMin;
  bool stopped_ = false;
};

class DialerImpl final : public Dialer {
 public:
  DialerImpl(asio::io_context& io, std::shared_ptr<DialLoop> loop)
      : io_(io), loop_(std::move(loop)) {}
  ~DialerImpl() override { stop(); }
  void stop() override {
    if (loop_) asio::dispatch(io_, [loop = std::exchange(loop_, nullptr)] { loop->stop(); });
  }

 private:
  asio::io_context& io_;
  std::shared_ptr<DialLoop> loop_;
};

}  // namespace

std::unique_ptr<Dialer> keep_dialled(asio::io_context& io, const LinkContext& context,
                                     std::string host_port, SessionHandlers handlers) {
  auto loop = std::make_shared<DialLoop>(io, context, std::move(host_port), std::move(handlers));
  asio::dispatch(io, [loop] { loop->attempt(); });
  return std::make_unique<DialerImpl>(io, std::move(loop));
}

}  // namespace tandem::link

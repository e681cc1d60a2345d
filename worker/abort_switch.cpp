#include "worker/abort_switch.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

namespace tandem::worker {
namespace {

// A chunk does not take longer; deadlines further away are looked at between chunks.
constexpr auto kChunkSecondsMax = std::chrono::seconds(30);

}  // namespace

// The timer, on the io_context thread. Outlives the switch while a handler is pending.
class AbortSwitch::Watch : public std::enable_shared_from_this<Watch> {
 public:
  Watch(boost::asio::io_context& io, AbortSwitch* owner) : io_(io), timer_(io), owner_(owner) {}

  void arm(TimePoint deadline, uint64_t chunk) {
    boost::asio::post(io_, [self = shared_from_this(), deadline, chunk] {
      self->timer_.expires_at(deadline);
      self->timer_.async_wait([self, chunk](boost::system::error_code error) {
        if (!error) self->expired(chunk);
      });
    });
  }
  void disown() {
    const std::lock_guard lock(mutex_);
    owner_ = nullptr;
  }

 private:
  void expired(uint64_t chunk) {
    const std::lock_guard lock(mutex_);
    if (owner_) owner_->abort_if([&] { return owner_->chunk_ == chunk; });
  }

  boost::asio::io_context& io_;
  boost::asio::steady_timer timer_;
  std::mutex mutex_;
  AbortSwitch* owner_;  // Guarded by mutex_
};

AbortSwitch::AbortSwitch(boost::asio::io_context& io, Engine& engine)
    : engine_(engine), watch_(std::make_shared<Watch>(io, this)) {}

AbortSwitch::~AbortSwitch() { watch_->disown(); }

void AbortSwitch::begin(TransferId transfer, const link::Session* router, TimePoint deadline) {
  uint64_t chunk = 0;
  {
    const std::lock_guard lock(mutex_);
    engine_.clear_abort();
    running_ = true;
    transfer_ = transfer;
    router_ = router;
    chunk = ++chunk_;
  }
  if (deadline - SystemClock::get().now() < kChunkSecondsMax) watch_->arm(deadline, chunk);
}

void AbortSwitch::end() {
  const std::lock_guard lock(mutex_);
  running_ = false;
  engine_.clear_abort();
}

template <class Condition>
void AbortSwitch::abort_if(Condition condition) {
  const std::lock_guard lock(mutex_);
  if (running_ && condition()) engine_.request_abort();
}

void AbortSwitch::cancelled(TransferId transfer, const link::Session* router) {
  abort_if([&] { return transfer_ == transfer && router_ == router; });
}
void AbortSwitch::transfer_failed(TransferId transfer) {
  abort_if([&] { return transfer_ == transfer; });
}
void AbortSwitch::router_gone(const link::Session* router) {
  abort_if([&] { return router_ == router; });
}
void AbortSwitch::stop() {
  abort_if([] { return true; });
}

}  // namespace tandem::worker

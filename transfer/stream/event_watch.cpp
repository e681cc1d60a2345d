#include "transfer/stream/event_watch.h"

#include <unistd.h>

#include <boost/asio/post.hpp>

namespace tandem::transfer {
namespace {

constexpr int kRoundsPerTurn = 16;  // Then other work of the thread gets its turn

}  // namespace

// The descriptor stays the transport's: what is closed here is a duplicate.
EventWatch::EventWatch(boost::asio::io_context& io, Transport& transport, const BusyPolling& polled)
    : io_(io),
      transport_(transport),
      polled_(polled),
      descriptor_(io, ::dup(transport.event_fd())),
      timer_(io) {}

void EventWatch::start() {
  boost::asio::post(io_, [self = shared_from_this()] { self->turn(); });
}

void EventWatch::stop() {
  stopped_ = true;
  boost::system::error_code ignored;
  descriptor_.close(ignored);
  timer_.cancel();
}

void EventWatch::turn() {
  if (!stopped_ && polled_.now()) {
    timer_.expires_after(std::chrono::milliseconds(BusyPolling::kLookAgainMs));
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->turn();
    });
    return;
  }
  for (int round = 0; round < kRoundsPerTurn && !stopped_; ++round) {
    if (transport_.progress()) continue;
    if (stopped_ || !transport_.arm()) continue;
    descriptor_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                           [self = shared_from_this()](const boost::system::error_code& error) {
                             if (!error) self->turn();
                           });
    return;
  }
  if (!stopped_) start();
}

}  // namespace tandem::transfer

#include "transfer/stream/event_watch.h"

#include <unistd.h>

#include <boost/asio/post.hpp>

namespace tandem::transfer {
namespace {

constexpr int kRoundsPerTurn = 16;  // Then other work of the thread gets its turn

}  // namespace

// The descriptor stays the transport's: what is closed here is a duplicate.
EventWatch::EventWatch(boost::asio::io_context& io, Transport& transport)
    : io_(io), transport_(transport), descriptor_(io, ::dup(transport.event_fd())) {}

void EventWatch::start() {
  boost::asio::post(io_, [self = shared_from_this()] { self->turn(); });
}

void EventWatch::stop() {
  stopped_ = true;
  boost::system::error_code ignored;
  descriptor_.close(ignored);
}

void EventWatch::turn() {
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

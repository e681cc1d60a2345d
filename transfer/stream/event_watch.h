// EventWatch: polls one transport from an io_context whenever its event descriptor says that there
// is work.
//
// start() and stop() run on the io_context thread, or while it does not run. After stop() the
// transport is not touched again.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>

#include "transfer/stream/busy_polling.h"
#include "transfer/transport.h"

namespace tandem::transfer {

class EventWatch : public std::enable_shared_from_this<EventWatch> {
 public:
  // Requires: transport.event_fd() >= 0.
  EventWatch(boost::asio::io_context& io, Transport& transport, const BusyPolling& polled);
  void start();
  void stop();

 private:
  void turn();

  boost::asio::io_context& io_;
  Transport& transport_;
  const BusyPolling& polled_;  // By other threads; outlives the transport
  boost::asio::posix::stream_descriptor descriptor_;
  boost::asio::steady_timer timer_;
  bool stopped_ = false;
};

}  // namespace tandem::transfer

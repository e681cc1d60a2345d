// Mailbox: how events reach a request's coroutine. Everything is called on the request's I/O
// thread; others deliver() by posting there. What it can hold is bounded by what the request may
// generate. After close(), which the flow calls at its end, events are dropped; the rest of it may
// die on any thread, at any time.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "router/attempt.h"

namespace tandem::router {

class Mailbox {
 public:
  // `wakeup`: the flow's, used until close().
  Mailbox(boost::asio::io_context& io, boost::asio::steady_timer& wakeup)
      : io_(io), wakeup_(&wakeup) {}

  boost::asio::io_context& io() { return io_; }

  void push(AttemptEvent event);
  // Ends the wait that runs now, or else the next one, early.
  void interrupt();
  void close();
  // Until there are events, an interrupt, or it is `until`.
  boost::asio::awaitable<void> wait(TimePoint until);
  std::vector<AttemptEvent> take() { return std::exchange(events_, {}); }

  using Batch = std::vector<std::pair<std::shared_ptr<Mailbox>, AttemptEvent>>;
  // Any thread. All of `batch` belongs to mailboxes of `io`.
  static void deliver(boost::asio::io_context& io, Batch batch);

 private:
  boost::asio::io_context& io_;
  boost::asio::steady_timer* wakeup_;  // Null after close()
  std::vector<AttemptEvent> events_;
  bool interrupted_ = false;
};

}  // namespace tandem::router

// What a TCP transport receives: its segments, and the accepted connections. Private to tcp/.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "transfer/tcp/tcp_wire.h"
#include "transfer/transport.h"

namespace tandem::transfer {

// The segments that peers may write to. Any thread. A receive holds the lock: once remove()
// returns, no byte arrives in that memory any more.
class TcpSegments {
 public:
  uint64_t add(std::span<std::byte> memory);
  void remove(uint64_t segment);
  // Does `length` bytes at `offset` fit that segment?
  bool fits(uint64_t segment, uint64_t offset, uint64_t length) const;
  // Receives up to `length` bytes into the segment, then up to `next.size()` bytes into `next`.
  // Returns what recvmsg() does; ESTALE when the segment is gone.
  ssize_t receive(int fd, uint64_t segment, uint64_t offset, uint64_t length, std::span<char> next);

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, std::span<std::byte>> segments_;  // Guarded by mutex_
};

// Accepts and reads. Lives on the transport's thread; handlers of the transport run there too.
class TcpInbound {
 public:
  TcpInbound(boost::asio::io_context& io, TcpSegments& segments, std::string key);
  ~TcpInbound();
  // Listens. `host` may be a wildcard.
  Status listen(const std::string& host);
  uint16_t port() const { return port_; }
  void set_message_handler(Transport::MessageHandler handler);
  void handle(std::string_view message);

 private:
  class Connection;
  void accept();
  void accept_later();

  friend class Connection;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_;
  TcpSegments& segments_;
  const std::string key_;
  uint16_t port_ = 0;
  std::vector<std::weak_ptr<Connection>> connections_;
  std::mutex handler_mutex_;
  std::shared_ptr<const Transport::MessageHandler> handler_;  // Guarded by handler_mutex_
};

}  // namespace tandem::transfer

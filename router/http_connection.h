// Connection: one client's TCP connection on the data port. Only http_server.cpp uses this.
//
// Lives on one I/O thread and is kept alive by its own coroutine. One request at a time; bytes of a
// pipelined next one wait in the buffer. While a request is answered, a read is pending, so that a
// client that goes away is noticed at once.
#pragma once

#include <atomic>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "router/exchange.h"
#include "router/http_server.h"

namespace tandem::router {

class Connection;

// What the connections of one I/O thread share.
struct IoThread {
  const RouterConfig& config;
  const HttpServer::Handler& handler;
  boost::asio::io_context io{1};
  std::unordered_set<Connection*> connections;
  bool draining = false;
  std::atomic<int>& exchanges;
};

class Connection final : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  // `refuse`: answer the first request with 503 and close.
  Connection(IoThread& thread, Socket socket, bool refuse);
  ~Connection() override;

  boost::asio::awaitable<void> run();
  // Called now and then: ends what has waited too long.
  void check_deadline(TimePoint now);
  // Closes the connection if it is between requests.
  void close_idle();
  void close();

  Request& request() override { return request_; }
  boost::asio::io_context& io() override { return thread_.io; }
  boost::asio::awaitable<bool> respond(Response response) override;
  void start_stream(std::string_view content_type, const Headers& headers) override;
  boost::asio::awaitable<bool> write(std::string_view data) override;
  boost::asio::awaitable<bool> finish_stream(std::string_view data, bool keep) override;
  bool client_gone() const override { return gone_; }
  void on_client_gone(std::function<void()> callback) override { on_gone_ = std::move(callback); }

 private:
  enum class Read { kRequest, kClosed, kRefused };

  boost::asio::awaitable<bool> wait_for_bytes();
  boost::asio::awaitable<Read> read_request();
  template <class Parser>
  void take_head(const Parser& parser);
  boost::asio::awaitable<void> serve();
  boost::asio::awaitable<bool> send(std::string data);
  boost::asio::awaitable<void> linger();
  std::string head(int status, std::string_view content_type, const Headers& headers) const;
  void arm_watch();
  boost::asio::awaitable<void> stop_watch();
  void lost();
  void set_deadline(Milliseconds from_now);
  void clear_deadline() { deadline_ = TimePoint::max(); }

  IoThread& thread_;
  Socket socket_;
  const bool refuse_;
  boost::beast::flat_buffer buffer_;
  Request request_;
  std::string origin_;
  bool http_1_0_ = false;
  bool keep_alive_ = true;
  bool head_request_ = false;

  TimePoint deadline_ = TimePoint::max();
  bool timed_out_ = false;
  bool idle_ = false;  // Between requests
  bool answering_ = false;
  bool answered_ = false;
  bool streaming_ = false;
  std::string unsent_head_;
  std::optional<openai::ApiError> read_error_;

  boost::asio::cancellation_signal watch_cancel_;
  boost::asio::steady_timer watch_ended_;
  bool watching_ = false;
  bool watch_wanted_ = false;
  bool gone_ = false;
  std::function<void()> on_gone_;
};

}  // namespace tandem::router

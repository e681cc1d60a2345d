// HttpServer: the data port. Accepts connections, spreads them over RouterConfig::threads I/O
// threads (an io_context each, so that a connection's state needs no lock), and enforces limits and
// deadlines.
//
// Owned by the router. start() and stop() from the owner's thread. drain(): no new connections,
// idle ones close, running exchanges end and close theirs. stop() closes all and joins; handlers
// that still run are destroyed with the server, so what they use must outlive it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>
#include <string>

#include "common/config.h"
#include "common/status.h"
#include "router/exchange.h"
#include "router/router_metrics.h"

namespace tandem::router {

class HttpServer {
 public:
  // Answers one request. Runs as a coroutine on the connection's I/O thread.
  using Handler = std::function<boost::asio::awaitable<void>(Exchange&)>;

  HttpServer(const RouterConfig& config, const RouterMetrics& metrics, Handler handler);
  ~HttpServer();

  Status start();
  std::string address() const;  // "host:port" actually bound
  void drain();
  int connections() const;
  int exchanges() const;  // Requests being answered
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::router

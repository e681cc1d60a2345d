#include "router/http_server.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <thread>
#include <vector>

#include "common/log.h"
#include "router/http_connection.h"

namespace tandem::router {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::milliseconds kSweep{100};
constexpr std::chrono::milliseconds kAcceptPause{100};
// Connections beyond the limit that are still told so; more are closed without a word.
constexpr int kRefusalsMax = 64;

}  // namespace

struct HttpServer::State {
  State(const RouterConfig& config_in, const RouterMetrics& metrics_in, Handler handler_in)
      : config(config_in), metrics(metrics_in), handler(std::move(handler_in)) {
    for (int i = 0; i < config.threads; ++i)
      threads.push_back(std::unique_ptr<IoThread>(
          new IoThread{.config = config, .handler = handler, .exchanges = exchanges}));
  }

  asio::awaitable<void> accept_loop();
  asio::awaitable<void> sweep(IoThread& thread);
  void take(IoThread& thread, tcp::socket socket);

  const RouterConfig& config;
  const RouterMetrics& metrics;
  const Handler handler;
  std::atomic<int> exchanges{0};
  std::atomic<int> connections{0};
  std::vector<std::unique_ptr<IoThread>> threads;
  std::optional<tcp::acceptor> acceptor;  // On the first I/O thread
  std::string address;
  std::vector<std::thread> running;  // Last: what they use is above
};

HttpServer::HttpServer(const RouterConfig& config, const RouterMetrics& metrics, Handler handler)
    : state_(std::make_unique<State>(config, metrics, std::move(handler))) {}

HttpServer::~HttpServer() { stop(); }

Status HttpServer::start() {
  Result<HostPort> listen = parse_host_port(state_->config.listen);
  if (!listen.ok()) return listen.status();
  const auto failed = [&](std::string_view what, const error_code& error) {
    const ErrorCode code = error == asio::error::address_in_use ? ErrorCode::kUnavailable
                                                                : ErrorCode::kInvalidArgument;
    return Status(code, std::string(what) + " " + state_->config.listen + ": " + error.message());
  };
  asio::io_context& io = state_->threads.front()->io;
  error_code error;
  const auto found = tcp::resolver(io).resolve(listen->host, std::to_string(listen->port), error);
  if (error || found.empty()) return failed("router.listen: cannot resolve", error);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor& acceptor = state_->acceptor.emplace(io);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  if (error) return failed("router.listen: cannot listen on", error);
  const tcp::endpoint bound = acceptor.local_endpoint(error);
  const std::string host = bound.address().to_string();
  state_->address =
      (bound.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(bound.port());

  asio::co_spawn(io, state_->accept_loop(), asio::detached);
  for (const auto& thread : state_->threads) {
    asio::co_spawn(thread->io, state_->sweep(*thread), asio::detached);
    state_->running.emplace_back([&io_thread = *thread] { io_thread.io.run(); });
  }
  return {};
}

std::string HttpServer::address() const { return state_->address; }
int HttpServer::connections() const { return state_->connections.load(); }
int HttpServer::exchanges() const { return state_->exchanges.load(); }

asio::awaitable<void> HttpServer::State::accept_loop() {
  asio::steady_timer pause(threads.front()->io);
  for (size_t turn = 0;; ++turn) {
    IoThread& thread = *threads[turn % threads.size()];
    error_code error;
    tcp::socket socket = co_await acceptor->async_accept(
        thread.io, asio::redirect_error(asio::use_awaitable, error));
    if (!acceptor->is_open() || error == asio::error::operation_aborted) co_return;
    if (error) {
      log_warn("event=accept_failed reason={}", tandem::quoted(error.message()));
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    take(thread, std::move(socket));
  }
}

void HttpServer::State::take(IoThread& thread, tcp::socket socket) {
  const int present = connections.fetch_add(1) + 1;
  metrics.connections.set(present);
  const bool refuse = present > config.connections_max;
  if (refuse) metrics.request_refused("connections_max");
  if (present > config.connections_max + kRefusalsMax) {
    connections.fetch_sub(1);
    return;
  }
  // The connection joins its thread's set there.
  asio::post(thread.io, [this, &thread, refuse, socket = std::move(socket)]() mutable {
    auto connection = std::make_shared<Connection>(thread, std::move(socket), refuse);
    asio::co_spawn(
        thread.io, [connection]() { return connection->run(); },
        [this](std::exception_ptr) { metrics.connections.set(connections.fetch_sub(1) - 1); });
  });
}

asio::awaitable<void> HttpServer::State::sweep(IoThread& thread) {
  asio::steady_timer timer(thread.io);
  for (;;) {
    timer.expires_after(kSweep);
    co_await timer.async_wait(asio::use_awaitable);
    const TimePoint now = SystemClock::get().now();
    // A callback may end connections.
    const std::vector<Connection*> all(thread.connections.begin(), thread.connections.end());
    for (Connection* connection : all)
      if (thread.connections.contains(connection)) connection->check_deadline(now);
  }
}

void HttpServer::drain() {
  for (const auto& thread : state_->threads) {
    asio::post(thread->io, [state = state_.get(), &io_thread = *thread] {
      error_code ignored;
      if (&io_thread == state->threads.front().get() && state->acceptor)
        state->acceptor->close(ignored);
      io_thread.draining = true;
      const std::vector<Connection*> all(io_thread.connections.begin(),
                                         io_thread.connections.end());
      for (Connection* connection : all)
        if (io_thread.connections.contains(connection)) connection->close_idle();
    });
  }
}

void HttpServer::stop() {
  for (const auto& thread : state_->threads) thread->io.stop();
  for (std::thread& thread : state_->running)
    if (thread.joinable()) thread.join();
  state_->running.clear();
}

}  // namespace tandem::router

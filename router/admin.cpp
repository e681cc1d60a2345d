#include "router/admin.h"

#include <httplib.h>

#include <thread>

#include "common/log.h"
#include "router/pages.h"

namespace tandem::router {
namespace {

constexpr size_t kBodyBytesMax = 64u << 10;
constexpr int kThreads = 2;
constexpr time_t kDeadlineSeconds = 5;

void write(const Response& from, httplib::Response& to) {
  to.status = from.status;
  for (const auto& [name, value] : from.headers) to.set_header(name, value);
  to.set_content(from.body, from.content_type);
}

}  // namespace

struct AdminServer::State {
  explicit State(Services& services_in) : services(services_in) {}

  void answer(const Status& status, httplib::Response& response);
  Status change_role(const std::string& worker, const std::string& role);

  Services& services;
  httplib::Server server;
  std::string address;
  std::thread thread;
};

AdminServer::AdminServer(Services& services) : state_(std::make_unique<State>(services)) {
  httplib::Server& server = state_->server;
  State* state = state_.get();
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_payload_max_length(kBodyBytesMax);
  server.set_read_timeout(kDeadlineSeconds);
  server.set_write_timeout(kDeadlineSeconds);
  server.set_keep_alive_timeout(kDeadlineSeconds);
  server.set_tcp_nodelay(true);
  // Not the library's SO_REUSEPORT, which would let two routers share the port unnoticed.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  // Two threads must not be held by two idle scrapers.
  server.set_keep_alive_max_count(1);
  server.Get(".*", [state](const httplib::Request& request, httplib::Response& response) {
    const std::string path = normalise_path(request.path);
    const std::optional<Response> page = get_page(state->services, path);
    write(page ? *page : error_response(openai::unknown_url(request.method, path)), response);
  });
  server.Post(R"((?:/v1)?/workers/([^/]+)/(drain|resume))",
              [state](const httplib::Request& request, httplib::Response& response) {
                const std::string name = request.matches[1];
                state->answer(state->services.pool.control(name, request.matches[2]), response);
              });
  server.Post(R"((?:/v1)?/workers/([^/]+)/role/([^/]+))",
              [state](const httplib::Request& request, httplib::Response& response) {
                state->answer(state->change_role(request.matches[1], request.matches[2]), response);
              });
  server.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty()) return;
    openai::ApiError error = openai::unknown_url(request.method, normalise_path(request.path));
    if (response.status != 404) error = openai::invalid_request("", "invalid_http", "Bad request.");
    error.status = response.status;
    write(error_response(error), response);
  });
}

AdminServer::~AdminServer() { stop(); }

// An operator is told of workers what a client is not.
void AdminServer::State::answer(const Status& status, httplib::Response& response) {
  if (status.ok()) return write({.body = R"({"status":"ok"})"}, response);
  openai::ApiError error = openai::from_status(status);
  error.message = status.message();
  if (status.code() == ErrorCode::kFailedPrecondition) {
    error = openai::invalid_request("", "conflict", status.message());
    error.status = 409;
  } else if (status.code() == ErrorCode::kUnavailable) {
    error.status = 503;
    error.code = "worker_not_connected";
  }
  write(error_response(error), response);
}

Status AdminServer::State::change_role(const std::string& worker, const std::string& name) {
  Role role{};
  if (!role_from_name(name, role))
    return Status(ErrorCode::kInvalidArgument, "role " + tandem::quoted(name) +
                                                   " is not one of prefill, decode, coupled, "
                                                   "partitioned");
  return services.dispatcher.change_role(worker, role);
}

Status AdminServer::start() {
  const std::string& configured = state_->services.config.router.admin;
  Result<HostPort> listen = parse_host_port(configured);
  if (!listen.ok()) return listen.status();
  int port = listen->port;
  const bool bound = port == 0 ? (port = state_->server.bind_to_any_port(listen->host)) > 0
                               : state_->server.bind_to_port(listen->host, port);
  if (!bound)
    return Status(ErrorCode::kUnavailable, "router.admin: cannot listen on " + configured +
                                               ": the port is in use or the address is not ours");
  state_->address = listen->host + ":" + std::to_string(port);
  state_->thread = std::thread([state = state_.get()] { state->server.listen_after_bind(); });
  // stop() does nothing before the thread listens; so the start ends when it does.
  const TimePoint until = SystemClock::get().now() + std::chrono::seconds(kDeadlineSeconds);
  while (!state_->server.is_running() && SystemClock::get().now() < until)
    std::this_thread::yield();
  return {};
}

std::string AdminServer::address() const { return state_->address; }

void AdminServer::stop() {
  state_->server.stop();
  if (state_->thread.joinable()) state_->thread.join();
}

}  // namespace tandem::router

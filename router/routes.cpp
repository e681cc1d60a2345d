#include "router/routes.h"

#include "router/pages.h"
#include "router/request_flow.h"
#include "router/run_on.h"

namespace tandem::router {
namespace asio = boost::asio;

namespace {

constexpr std::string_view kGetMethods = "GET, HEAD, OPTIONS";
constexpr std::string_view kPostMethods = "POST, OPTIONS";

bool is_post_path(std::string_view path) {
  return path == "/completions" || path == "/chat/completions" || path == "/tokenize" ||
         path == "/detokenize";
}

bool is_get_path(std::string_view path) {
  for (const std::string_view known : {"/health", "/ping", "/health/ready", "/health/live",
                                       "/version", "/models", "/metrics", "/workers"})
    if (path == known) return true;
  return path.starts_with("/models/") || path.starts_with("/requests/");
}

Response preflight(const Request& request) {
  Response response{.status = 204, .content_type = ""};
  response.headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                      {"Access-Control-Max-Age", "600"}};
  // Repeated, since `*` does not cover Authorization.
  if (!request.preflight_headers.empty())
    response.headers.emplace_back("Access-Control-Allow-Headers", request.preflight_headers);
  return response;
}

asio::awaitable<void> page(Services& services, Exchange& exchange) {
  const std::string path = exchange.request().path;
  std::optional<Response> response;
  if (is_quick_page(path)) {
    response = get_page(services, path);
  } else {
    const std::function<Response()> job = [&services, path] { return *get_page(services, path); };
    response = co_await run_on(services.work_threads, job);
    if (!response)
      response = error_response(openai::overloaded(services.dispatcher.retry_after_seconds()));
  }
  co_await exchange.respond(std::move(*response));
}

asio::awaitable<void> tokens(Services& services, Exchange& exchange) {
  const Request& request = exchange.request();
  if (const auto error = openai::check_content_type(request.content_type)) {
    co_await exchange.respond(error_response(*error));
    co_return;
  }
  const std::function<openai::Parsed<std::string>()> job = [&services, &request] {
    return request.path == "/tokenize" ? services.preparer.tokenize(request.body)
                                       : services.preparer.detokenize(request.body);
  };
  auto body = co_await run_on(services.work_threads, job);
  Response response;
  if (!body)
    response = error_response(openai::overloaded(services.dispatcher.retry_after_seconds()));
  else if (!*body)
    response = error_response(body->error());
  else
    response.body = std::move(**body);
  co_await exchange.respond(std::move(response));
}

}  // namespace

asio::awaitable<void> route(Services& services, Exchange& exchange) {
  const std::string method = exchange.request().method;
  const std::string path = exchange.request().path;
  if (method == "OPTIONS") {
    Response response = preflight(exchange.request());
    co_await exchange.respond(std::move(response));
  } else if (is_post_path(path) && method == "POST") {
    if (path == "/completions" || path == "/chat/completions") {
      const openai::Kind kind =
          path == "/completions" ? openai::Kind::kCompletion : openai::Kind::kChat;
      RequestFlow flow(services, exchange, kind);
      co_await flow.run();
    } else {
      co_await tokens(services, exchange);
    }
  } else if (is_get_path(path) && (method == "GET" || method == "HEAD")) {
    co_await page(services, exchange);
  } else if (is_post_path(path) || is_get_path(path)) {
    const std::string allow(is_post_path(path) ? kPostMethods : kGetMethods);
    Response response = error_response(openai::method_not_allowed(method, path, allow));
    co_await exchange.respond(std::move(response));
  } else {
    Response response = error_response(openai::unknown_url(method, path));
    co_await exchange.respond(std::move(response));
  }
}

}  // namespace tandem::router

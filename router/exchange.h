// Exchange: one HTTP request and the way to answer it, without saying which library carries it.
//
// Made by a connection, valid while its handler runs, on that connection's I/O thread. Exactly one
// answer: respond(), or start_stream(), any number of write()s and finish_stream(). A false answer
// means that the client is gone; nothing can be written then. Each write has
// RouterConfig::write_deadline.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "router/openai/api_error.h"

namespace tandem::router {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method;
  std::string path;  // Normalised: no query, no doubled or trailing slash, no leading /v1
  std::string content_type;
  std::string id;  // X-Request-Id, given or made
  bool id_given = false;
  Headers objectives;             // Those of objectives.h, names in lower case
  std::string preflight_headers;  // Access-Control-Request-Headers
  std::string body;
  TimePoint received{};
  int64_t received_us = 0;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  Headers headers;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual Request& request() = 0;
  virtual boost::asio::io_context& io() = 0;
  virtual boost::asio::awaitable<bool> respond(Response response) = 0;
  // The head goes out with the first write.
  virtual void start_stream(std::string_view content_type, const Headers& headers) = 0;
  virtual boost::asio::awaitable<bool> write(std::string_view data) = 0;
  // `data` and the end. `keep`: may the connection be used again?
  virtual boost::asio::awaitable<bool> finish_stream(std::string_view data, bool keep) = 0;
  virtual bool client_gone() const = 0;
  // Called at most once, when the client goes away while the handler runs. Empty: no longer.
  virtual void on_client_gone(std::function<void()> callback) = 0;
};

// The error as a response: body, Retry-After, Allow, x-should-retry.
Response error_response(const openai::ApiError& error);

// What Request::path says of what the client sent.
std::string normalise_path(std::string_view target);

}  // namespace tandem::router

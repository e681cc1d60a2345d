// Plain HTTP/1.1 to one server: addresses, request text, and single calls with a deadline.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace tandem::bench {

struct Url {
  std::string host;
  std::string port;
  std::string path;  // Without a "/" at the end, and without "/v1": the server's root

  std::string host_port() const;  // As in the Host header
};

// Only http:// is spoken; the message for https says what to do.
Result<Url> parse_url(const std::string& text);

struct HttpRequest {
  std::string method = "GET";
  std::string path;
  std::string body;
  std::vector<std::string> headers;  // "Name: value"
};

// Header and body as they go on the wire. The connection closes after the answer.
std::string wire_text(const Url& url, const HttpRequest& request);

struct HttpReply {
  int status_code = 0;
  std::string body;
};

// Blocks the calling thread, at most for `deadline`.
Result<HttpReply> http_call(const Url& url, const HttpRequest& request,
                            std::chrono::milliseconds deadline);

}  // namespace tandem::bench

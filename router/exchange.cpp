#include "router/exchange.h"

#include <cmath>

namespace tandem::router {

Response error_response(const openai::ApiError& error) {
  Response response{.status = error.status, .body = error.body()};
  if (error.retry_after_seconds > 0) {
    const auto ms = static_cast<int64_t>(std::ceil(error.retry_after_seconds * 1000));
    response.headers.emplace_back("Retry-After", std::to_string((ms + 999) / 1000));
    response.headers.emplace_back("retry-after-ms", std::to_string(ms));
  }
  if (!error.allow.empty()) response.headers.emplace_back("Allow", error.allow);
  if (error.should_retry)
    response.headers.emplace_back("x-should-retry", *error.should_retry ? "true" : "false");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::string normalise_path(std::string_view target) {
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  for (const char c : target)
    if (c != '/' || path.empty() || path.back() != '/') path += c;
  if (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path.starts_with("/v1/")) path.erase(0, 3);
  return path;
}

}  // namespace tandem::router

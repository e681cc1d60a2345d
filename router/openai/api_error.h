// ApiError: one failure in OpenAI's form, and the one place that maps ErrorCode to HTTP.
//
// Plain values; any thread. Messages never repeat a client's prompt or token ids: some clients take
// a bare "429" anywhere in an error for a rate limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "common/status.h"

namespace tandem::openai {

struct ApiError {
  int status = 500;
  std::string type = "server_error";
  std::string code;  // Always a string on the wire; empty is written as null
  std::string message;
  std::optional<std::string> param;
  double retry_after_seconds = 0;    // 1 to 60 where the client may try again, else 0: no header
  std::optional<bool> should_retry;  // Header x-should-retry
  std::string allow;                 // Header Allow, with 405
  std::optional<int64_t> prompt_tokens;   // With context_length_exceeded: `n_prompt_tokens`
  std::optional<int64_t> context_tokens;  // likewise `n_ctx`

  // {"error":{"message":..,"type":..,"param":..,"code":..}}
  std::string body() const;
};

// Either a value or the answer that the client gets instead.
template <class T>
class [[nodiscard]] Parsed {
 public:
  Parsed(T value) : data_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Parsed(ApiError error) : data_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(data_); }
  explicit operator bool() const { return ok(); }
  // Requires: ok().
  T& value() { return std::get<T>(data_); }
  const T& value() const { return std::get<T>(data_); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  // Requires: !ok().
  ApiError& error() { return std::get<ApiError>(data_); }
  const ApiError& error() const { return std::get<ApiError>(data_); }

 private:
  std::variant<T, ApiError> data_;
};

// 400. `param` is a field name or a path such as `messages[2].content[0].type`.
ApiError invalid_request(std::string_view param, std::string_view code, std::string message);
ApiError missing_parameter(std::string_view param);
// `expected` and `found` with article: "an integer", "a string".
ApiError invalid_type(std::string_view param, std::string_view expected, std::string_view found);
// "Invalid 'param': reason"
ApiError invalid_value(std::string_view param, std::string_view reason);
ApiError empty_array(std::string_view param);
ApiError unsupported_value(std::string_view param, std::string message);
ApiError unsupported_parameter(std::string_view param, std::string message);
ApiError unknown_parameter(std::string_view param);
ApiError invalid_json(std::string_view reason);
// The wording that clients search for. `max_tokens`: what the client asked for, if it did. `chat`:
// says "messages", else "prompt".
ApiError context_length_exceeded(int context, int64_t prompt_tokens,
                                 std::optional<int64_t> max_tokens, bool chat);

ApiError invalid_api_key();                        // 401; add header WWW-Authenticate: Bearer
ApiError permission_denied(std::string message);   // 403
ApiError model_not_found(std::string_view model);  // 404
ApiError unknown_url(std::string_view method, std::string_view path);  // 404
ApiError not_found(std::string message);                               // 404
ApiError method_not_allowed(std::string_view method, std::string_view path,
                            std::string allow);           // 405
ApiError request_too_large(int64_t bytes_max);            // 413
ApiError headers_too_large();                             // 431
ApiError unsupported_media_type(std::string_view found);  // 415
ApiError request_timeout();                         // 408: the rest of the request did not come
ApiError rate_limited(double retry_after_seconds);  // 429: per-key limits only
ApiError client_closed();                           // 499: for logs and metrics, never sent
ApiError internal_error();                          // 500
ApiError worker_lost(std::string message = {});     // 502
ApiError timed_out(std::string message = {});       // 504
ApiError overloaded(double retry_after_seconds, std::string message = {});  // 503
ApiError not_ready(double retry_after_seconds = 1);                         // 503
ApiError draining();                                                        // 503

// What a failure inside the router, or one that a worker reported, is to the client.
ApiError from_status(const Status& status);
// A scheduler's refusal: kResourceExhausted, kUnavailable or kDeadlineExceeded.
// `where`: the part of the server that is full.
ApiError refused(ErrorCode code, double retry_after_seconds, std::string_view where);

}  // namespace tandem::openai

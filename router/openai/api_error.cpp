#include "router/openai/api_error.h"

#include <algorithm>

#include "router/openai/json_writer.h"

namespace tandem::openai {
namespace {

constexpr std::string_view kInvalidRequest = "invalid_request_error";
constexpr double kRetryAfterMin = 1;
constexpr double kRetryAfterMax = 60;  // Official clients give up at more than 120 s

ApiError make(int status, std::string_view type, std::string_view code, std::string message) {
  ApiError error;
  error.status = status;
  error.type = type;
  error.code = code;
  error.message = std::move(message);
  return error;
}

double retry_after(double seconds) {
  return seconds > kRetryAfterMin ? std::min(seconds, kRetryAfterMax) : kRetryAfterMin;
}

std::string quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

// A client that waits and asks again is served.
ApiError come_back(int status, std::string_view type, std::string_view code, double seconds,
                   std::string message) {
  ApiError error = make(status, type, code, std::move(message));
  error.retry_after_seconds = retry_after(seconds);
  return error;
}

}  // namespace

std::string ApiError::body() const {
  std::string out;
  JsonWriter json(out);
  json.begin_object().key("error").begin_object();
  json.key("message").string(message).key("type").string(type).key("param");
  if (param) {
    json.string(*param);
  } else {
    json.null();
  }
  json.key("code");
  if (code.empty()) {
    json.null();
  } else {
    json.string(code);
  }
  if (prompt_tokens) json.key("n_prompt_tokens").integer(*prompt_tokens);
  if (context_tokens) json.key("n_ctx").integer(*context_tokens);
  json.end_object().end_object();
  return out;
}

ApiError invalid_request(std::string_view param, std::string_view code, std::string message) {
  ApiError error = make(400, kInvalidRequest, code, std::move(message));
  if (!param.empty()) error.param = std::string(param);
  return error;
}

ApiError missing_parameter(std::string_view param) {
  return invalid_request(param, "missing_required_parameter",
                         "Missing required parameter: " + quoted(param) + ".");
}

ApiError invalid_type(std::string_view param, std::string_view expected, std::string_view found) {
  return invalid_request(param, "invalid_type",
                         "Invalid type for " + quoted(param) + ": expected " +
                             std::string(expected) + ", but got " + std::string(found) +
                             " instead.");
}

ApiError invalid_value(std::string_view param, std::string_view reason) {
  return invalid_request(param, "invalid_value",
                         "Invalid " + quoted(param) + ": " + std::string(reason));
}

ApiError empty_array(std::string_view param) {
  return invalid_request(param, "empty_array",
                         "Invalid " + quoted(param) +
                             ": empty array. Expected an array with minimum length 1, but got an "
                             "empty array instead.");
}

ApiError unsupported_value(std::string_view param, std::string message) {
  return invalid_request(param, "unsupported_value", std::move(message));
}

ApiError unsupported_parameter(std::string_view param, std::string message) {
  return invalid_request(param, "unsupported_parameter", std::move(message));
}

ApiError unknown_parameter(std::string_view param) {
  return invalid_request(param, "unknown_parameter", "Unknown parameter: " + quoted(param) + ".");
}

ApiError invalid_json(std::string_view reason) {
  return invalid_request(
      "", "invalid_json",
      "We could not parse the JSON body of your request: " + std::string(reason) + ".");
}

ApiError context_length_exceeded(int context, int64_t prompt_tokens,
                                 std::optional<int64_t> max_tokens, bool chat) {
  const std::string what = chat ? "messages" : "prompt";
  std::string message =
      "This model's maximum context length is " + std::to_string(context) + " tokens. However, ";
  if (max_tokens) {
    message += "you requested " + std::to_string(prompt_tokens + *max_tokens) + " tokens (" +
               std::to_string(prompt_tokens) + " in the " + what + ", " +
               std::to_string(*max_tokens) +
               " in the completion). Please reduce the length of the " + what + " or completion.";
  } else {
    message += "your " + what + " resulted in " + std::to_string(prompt_tokens) +
               " tokens. Please reduce the length of the " + what + ".";
  }
  ApiError error = invalid_request(what, "context_length_exceeded", std::move(message));
  error.prompt_tokens = prompt_tokens;
  error.context_tokens = context;
  return error;
}

ApiError invalid_api_key() {
  return make(401, kInvalidRequest, "invalid_api_key",
              "Incorrect API key provided. Send a valid key as 'Authorization: Bearer KEY'.");
}

ApiError permission_denied(std::string message) {
  return make(403, "permission_error", "insufficient_permissions", std::move(message));
}

ApiError model_not_found(std::string_view model) {
  ApiError error = make(
      404, kInvalidRequest, "model_not_found",
      "The model `" + std::string(model) + "` does not exist or you do not have access to it.");
  error.param = "model";
  return error;
}

ApiError unknown_url(std::string_view method, std::string_view path) {
  return make(404, kInvalidRequest, "unknown_url",
              "Unknown request URL: " + std::string(method) + " " + std::string(path) + ".");
}

ApiError not_found(std::string message) {
  return make(404, kInvalidRequest, "not_found", std::move(message));
}

ApiError method_not_allowed(std::string_view method, std::string_view path, std::string allow) {
  ApiError error = make(405, kInvalidRequest, "method_not_supported",
                        "Not allowed to " + std::string(method) + " on " + std::string(path) +
                            ". Allowed: " + allow + ".");
  error.allow = std::move(allow);
  return error;
}

ApiError request_too_large(int64_t bytes_max) {
  return make(
      413, kInvalidRequest, "request_too_large",
      "The request body is larger than the maximum of " + std::to_string(bytes_max) + " bytes.");
}

ApiError headers_too_large() {
  return make(431, kInvalidRequest, "request_too_large", "The request headers are too large.");
}

ApiError unsupported_media_type(std::string_view found) {
  return make(415, kInvalidRequest, "unsupported_media_type",
              "Unsupported content type: '" + std::string(found) +
                  "'. Send 'Content-Type: application/json'.");
}

ApiError request_timeout() {
  return make(408, kInvalidRequest, "request_timeout",
              "The rest of the request did not arrive in time.");
}

ApiError rate_limited(double retry_after_seconds) {
  return come_back(429, "rate_limit_error", "rate_limit_exceeded", retry_after_seconds,
                   "Rate limit reached for this key. Please try again later.");
}

ApiError client_closed() {
  return make(499, kInvalidRequest, "client_closed", "The client closed the connection.");
}

ApiError internal_error() {
  ApiError error = make(500, "server_error", "internal_error",
                        "The server had an error while processing your request.");
  error.should_retry = false;  // The same request would meet the same fault
  return error;
}

ApiError worker_lost(std::string message) {
  if (message.empty()) message = "The worker that served this request was lost.";
  return make(502, "server_error", "worker_lost", std::move(message));
}

ApiError timed_out(std::string message) {
  if (message.empty()) message = "The request did not finish in time.";
  return make(504, "server_error", "timeout", std::move(message));
}

ApiError overloaded(double retry_after_seconds, std::string message) {
  if (message.empty()) message = "The server is overloaded. Please try again later.";
  return come_back(503, "server_error", "server_is_overloaded", retry_after_seconds,
                   std::move(message));
}

ApiError not_ready(double retry_after_seconds) {
  return come_back(503, "unavailable_error", "not_ready", retry_after_seconds, "Loading model");
}

ApiError draining() {
  return come_back(503, "server_error", "draining", 5, "The server is shutting down.");
}

ApiError from_status(const Status& status) {
  switch (status.code()) {
    case ErrorCode::kInvalidArgument:
      return invalid_request("", "invalid_value", status.message());
    case ErrorCode::kNotFound:
      return not_found(status.message());
    case ErrorCode::kFailedPrecondition:
      return not_ready();
    case ErrorCode::kResourceExhausted:
      return overloaded(1);
    // Messages from here on speak of workers and sockets: they belong into the log. A client's own
    // key is checked elsewhere; here it was a peer that could not prove who it is.
    case ErrorCode::kUnauthenticated:
    case ErrorCode::kUnavailable:
    case ErrorCode::kDataLoss:
      return worker_lost();
    case ErrorCode::kDeadlineExceeded:
      return timed_out();
    case ErrorCode::kCancelled:
      return client_closed();
    case ErrorCode::kOk:
    case ErrorCode::kInternal:
      break;
  }
  return internal_error();
}

ApiError refused(ErrorCode code, double retry_after_seconds, std::string_view where) {
  const std::string full = "Fullest: " + std::string(where) + ".";
  switch (code) {
    case ErrorCode::kUnavailable:
      return not_ready(retry_after_seconds);
    case ErrorCode::kDeadlineExceeded:
      return overloaded(retry_after_seconds,
                        "The request waited too long for a free worker. " + full);
    case ErrorCode::kInvalidArgument:
      return invalid_request("", "invalid_value", "No worker can hold a request of this size.");
    default:
      return overloaded(retry_after_seconds,
                        "The server is overloaded. Please try again later. " + full);
  }
}

}  // namespace tandem::openai

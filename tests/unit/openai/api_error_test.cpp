// Errors: their bodies, and what each failure of ours is over HTTP.
#include "router/openai/api_error.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace tandem::openai {
namespace {

TEST_CASE("a body has message, type, param and code, and code is never a number") {
  const nlohmann::json body = nlohmann::json::parse(missing_parameter("messages").body());
  CHECK(body ==
        nlohmann::json::parse(R"({"error":{"message":"Missing required parameter: 'messages'.",)"
                              R"("type":"invalid_request_error","param":"messages",)"
                              R"("code":"missing_required_parameter"}})"));
  const nlohmann::json plain = nlohmann::json::parse(internal_error().body());
  CHECK(plain["error"]["param"].is_null());
  CHECK(plain["error"]["code"].is_string());
  ApiError without_code;
  CHECK(nlohmann::json::parse(without_code.body())["error"]["code"].is_null());
}

TEST_CASE("bytes that are not UTF-8 do not spoil an error's body") {
  const std::string body = unknown_url("GET", "/\xFF\xFE\"\n").body();
  CHECK(nlohmann::json::parse(body)["error"]["code"] == "unknown_url");
}

TEST_CASE("each failure has its status, type and code") {
  struct Row {
    ApiError error;
    int status;
    const char* type;
    const char* code;
  };
  const Row rows[] = {
      {invalid_api_key(), 401, "invalid_request_error", "invalid_api_key"},
      {permission_denied("no"), 403, "permission_error", "insufficient_permissions"},
      {model_not_found("x"), 404, "invalid_request_error", "model_not_found"},
      {unknown_url("GET", "/x"), 404, "invalid_request_error", "unknown_url"},
      {method_not_allowed("PUT", "/x", "GET"), 405, "invalid_request_error",
       "method_not_supported"},
      {request_too_large(5), 413, "invalid_request_error", "request_too_large"},
      {unsupported_media_type("x"), 415, "invalid_request_error", "unsupported_media_type"},
      {rate_limited(3), 429, "rate_limit_error", "rate_limit_exceeded"},
      {internal_error(), 500, "server_error", "internal_error"},
      {worker_lost(), 502, "server_error", "worker_lost"},
      {timed_out(), 504, "server_error", "timeout"},
      {overloaded(2), 503, "server_error", "server_is_overloaded"},
      {not_ready(), 503, "unavailable_error", "not_ready"},
      {draining(), 503, "server_error", "draining"},
      {from_status({ErrorCode::kInvalidArgument, "m"}), 400, "invalid_request_error",
       "invalid_value"},
      {from_status({ErrorCode::kNotFound, "m"}), 404, "invalid_request_error", "not_found"},
      {from_status({ErrorCode::kResourceExhausted, "m"}), 503, "server_error",
       "server_is_overloaded"},
      {from_status({ErrorCode::kFailedPrecondition, "m"}), 503, "unavailable_error", "not_ready"},
      {from_status({ErrorCode::kUnavailable, "m"}), 502, "server_error", "worker_lost"},
      {from_status({ErrorCode::kUnauthenticated, "m"}), 502, "server_error", "worker_lost"},
      {from_status({ErrorCode::kDataLoss, "m"}), 502, "server_error", "worker_lost"},
      {from_status({ErrorCode::kDeadlineExceeded, "m"}), 504, "server_error", "timeout"},
      {from_status({ErrorCode::kInternal, "m"}), 500, "server_error", "internal_error"},
      {refused(ErrorCode::kResourceExhausted, 5, "x"), 503, "server_error", "server_is_overloaded"},
      {refused(ErrorCode::kUnavailable, 5, "x"), 503, "unavailable_error", "not_ready"},
      {refused(ErrorCode::kDeadlineExceeded, 5, "x"), 503, "server_error", "server_is_overloaded"},
  };
  for (const Row& row : rows) {
    CHECK(row.error.status == row.status);
    CHECK(row.error.type == row.type);
    CHECK(row.error.code == row.code);
    CHECK(!row.error.message.empty());
  }
  CHECK(invalid_api_key().message.find("Incorrect API key provided") == 0);
  CHECK(not_ready().message == "Loading model");
}

TEST_CASE("clients are asked to wait between 1 and 60 seconds, in whole seconds") {
  CHECK(overloaded(0).retry_after_seconds == 1);
  CHECK(overloaded(-5).retry_after_seconds == 1);
  CHECK(overloaded(2.2).retry_after_seconds == 2.2);  // Rounded up where it is written
  CHECK(overloaded(1e9).retry_after_seconds == 60);
  CHECK(overloaded(0.0 / 0.0 * 1).retry_after_seconds == 1);
  CHECK(worker_lost().retry_after_seconds == 0);
  CHECK(internal_error().should_retry == false);
}

TEST_CASE("messages of failures inside do not reach the client") {
  CHECK(from_status({ErrorCode::kInternal, "10.0.0.1 said 429"}).message.find("429") ==
        std::string::npos);
}

}  // namespace
}  // namespace tandem::openai

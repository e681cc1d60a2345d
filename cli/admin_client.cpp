#include "cli/admin_client.h"

#include <fmt/format.h>
#include <httplib.h>

#include <nlohmann/json.hpp>

#include "common/config.h"

namespace tandem::cli {
namespace {

// The message of an error body in OpenAI's form; else the start of the body.
std::string message_of(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error")) {
    const auto& error = json["error"];
    if (error.is_string()) return error.get<std::string>();
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return error["message"].get<std::string>();
    }
  }
  return body.substr(0, 200);
}

}  // namespace

Result<std::string> AdminClient::get(const std::string& path) const { return call(false, path); }
Result<std::string> AdminClient::post(const std::string& path) const { return call(true, path); }

Result<std::string> AdminClient::call(bool post, const std::string& path) const {
  const auto address = parse_host_port(address_);
  if (!address) return address.status();
  httplib::Client client(address->host, address->port);
  client.set_connection_timeout(2);
  client.set_read_timeout(5);
  client.set_write_timeout(2);
  const auto answer = post ? client.Post(path, "", "application/json") : client.Get(path);
  if (!answer) {
    return Status(ErrorCode::kUnavailable, fmt::format("no router answers at {}: {}", address_,
                                                       httplib::to_string(answer.error())));
  }
  if (answer->status == 200) return answer->body;
  const ErrorCode code = answer->status == 404   ? ErrorCode::kNotFound
                         : answer->status >= 500 ? ErrorCode::kUnavailable
                                                 : ErrorCode::kInvalidArgument;
  return Status(code, fmt::format("{} {}: {}", answer->status, path, message_of(answer->body)));
}

}  // namespace tandem::cli

#include "bench/server_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/interrupt.h"
#include "common/clock.h"

namespace tandem::bench {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kCallDeadline{10000};
constexpr milliseconds kHealthDeadline{2000};
constexpr milliseconds kHealthEvery{200};

Result<json> call_json(const Options& options, const Url& url, const std::string& path,
                       const json& body) {
  HttpRequest request{body.is_null() ? "GET" : "POST", path, body.is_null() ? "" : body.dump(),
                      options.headers};
  if (!options.api_key.empty())
    request.headers.push_back("Authorization: Bearer " + options.api_key);
  auto reply = http_call(url, request, kCallDeadline);
  if (!reply.ok()) return reply.status();
  if (reply->status_code != 200) {
    return Status(
        ErrorCode::kFailedPrecondition,
        fmt::format("{}: HTTP {}: {}", path, reply->status_code, error_message_of(reply->body)));
  }
  json parsed = json::parse(reply->body, nullptr, false);
  if (!parsed.is_object())
    return Status(ErrorCode::kDataLoss, path + ": the answer is not a JSON object");
  return parsed;
}

Result<std::string> first_model(const Options& options, const Url& url) {
  auto models = call_json(options, url, "/v1/models", nullptr);
  if (!models.ok()) return models.status();
  const json list = models->value("data", json::array());
  if (!list.is_array() || list.empty() || !list[0].is_object() || !list[0].contains("id") ||
      !list[0]["id"].is_string()) {
    return Status(ErrorCode::kNotFound, "/v1/models names no model: give --model");
  }
  return list[0]["id"].get<std::string>();
}

int token_count(const json& reply) {
  if (const auto count = reply.find("count"); count != reply.end() && count->is_number_integer())
    return count->get<int>();
  const auto tokens = reply.find("tokens");
  return tokens != reply.end() && tokens->is_array() ? static_cast<int>(tokens->size()) : 0;
}

// Asks /tokenize in vLLM's form, then in llama.cpp's.
Result<int> count_tokens(const Options& options, const Server& server, const std::string& text) {
  json body{{"model", server.model}};
  if (options.endpoint == Endpoint::kChat) {
    body["messages"] = json::array({{{"role", "user"}, {"content", text}}});
    body["add_generation_prompt"] = true;
  } else {
    body["prompt"] = text;
    body["add_special_tokens"] = true;
  }
  auto reply = call_json(options, server.url, "/tokenize", body);
  if (reply.ok() && token_count(*reply) > 0) return token_count(*reply);
  auto second =
      call_json(options, server.url, "/tokenize", {{"content", text}, {"add_special", true}});
  if (!second.ok()) return reply.ok() ? second.status() : reply.status();
  if (const int count = token_count(*second); count > 0) return count;
  return Status(ErrorCode::kFailedPrecondition, "/tokenize gives no count");
}

}  // namespace

Status wait_until_healthy(const Url& url, double seconds, const Pause& pause) {
  const auto deadline = SystemClock::get().now() + std::chrono::duration_cast<Duration>(
                                                       std::chrono::duration<double>(seconds));
  std::string last = "no answer";
  while (SystemClock::get().now() < deadline) {
    TANDEM_RETURN_IF_ERROR(pause(kHealthEvery));
    if (interrupted()) return {ErrorCode::kCancelled, "interrupted"};
    auto reply = http_call(url, {"GET", "/health", "", {}}, kHealthDeadline);
    if (reply.ok() && reply->status_code == 200) return {};
    last = reply.ok() ? fmt::format("HTTP {}", reply->status_code) : reply.status().message();
  }
  return {ErrorCode::kDeadlineExceeded, fmt::format("http://{} is not healthy after {:.0f} s: {}",
                                                    url.host_port(), seconds, last)};
}

Result<Server> set_up_server(const Options& options, const std::string& url) {
  auto parsed = parse_url(url);
  if (!parsed.ok()) return parsed.status();
  Server server{std::move(*parsed), options.model, PromptMaker(options.seed)};
  if (server.model.empty()) {
    auto model = first_model(options, server.url);
    if (!model.ok()) return model.status();
    server.model = std::move(*model);
  }
  auto prompts = PromptMaker::calibrate(
      options.seed, [&](const std::string& text) { return count_tokens(options, server, text); });
  if (!prompts.ok()) {
    fmt::print(stderr,
               "warning: prompt lengths are estimated ({}); the server's usage is reported\n",
               prompts.status().message());
    return server;
  }
  if (!prompts->exact())
    fmt::print(stderr,
               "warning: this tokenizer joins words, prompt lengths are approximate; "
               "the server's usage is reported\n");
  server.prompts = std::move(*prompts);
  return server;
}

}  // namespace tandem::bench

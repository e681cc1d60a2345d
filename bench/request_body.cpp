#include "bench/request_body.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tandem::bench {

RequestBody::RequestBody(const Options& options, const std::string& model)
    : endpoint_(options.endpoint) {
  nlohmann::json body{{"model", model},
                      {"stream", true},
                      {"stream_options", {{"include_usage", true}}},
                      {"ignore_eos", true},
                      {"temperature", 0}};
  body.update(nlohmann::json::parse(options.extra_body));
  sets_length_ = !body.contains("max_tokens") && !body.contains("max_completion_tokens");
  head_ = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  head_.pop_back();
}

std::string RequestBody::make(const std::string& prompt, int output_tokens) const {
  std::string body = head_;
  if (sets_length_) body += fmt::format(",\"max_tokens\":{}", output_tokens);
  body += endpoint_ == Endpoint::kChat
              ? ",\"messages\":[{\"role\":\"user\",\"content\":\"" + prompt + "\"}]}"
              : ",\"prompt\":\"" + prompt + "\"}";
  return body;
}

std::string RequestBody::path() const {
  return endpoint_ == Endpoint::kChat ? "/v1/chat/completions" : "/v1/completions";
}

}  // namespace tandem::bench

#include "bench/completion_event.h"

#include <simdjson.h>

namespace tandem::bench {
namespace {

using simdjson::dom::element;

constexpr size_t kMessageBytesMax = 200;

std::string message_of(element error) {
  std::string_view text;
  if (error.get(text) == simdjson::SUCCESS) return std::string(text.substr(0, kMessageBytesMax));
  if (error["message"].get(text) == simdjson::SUCCESS)
    return std::string(text.substr(0, kMessageBytesMax));
  return simdjson::minify(error).substr(0, kMessageBytesMax);
}

std::optional<int> count_of(element usage, const char* name) {
  int64_t value = 0;
  if (usage[name].get(value) != simdjson::SUCCESS) return {};
  return static_cast<int>(value);
}

bool is_set(simdjson::simdjson_result<element> value) {
  element found;
  return value.get(found) == simdjson::SUCCESS && !found.is_null();
}

void read_choice(element choice, CompletionEvent& event) {
  event.finished = event.finished || is_set(choice["finish_reason"]);
  std::string_view text;
  bool present = choice["text"].get(text) == simdjson::SUCCESS;
  bool role = false;
  if (element delta; choice["delta"].get(delta) == simdjson::SUCCESS) {
    role = is_set(delta["role"]);
    present = delta["content"].get(text) == simdjson::SUCCESS ||
              delta["reasoning_content"].get(text) == simdjson::SUCCESS;
  }
  if (!present || (text.empty() && (role || event.finished))) return;
  event.content = true;
  event.text = text;
}

}  // namespace

struct CompletionEventParser::Impl {
  simdjson::dom::parser parser;
};

CompletionEventParser::CompletionEventParser() : impl_(std::make_unique<Impl>()) {}
CompletionEventParser::~CompletionEventParser() = default;

CompletionEvent CompletionEventParser::parse(std::string_view data) {
  CompletionEvent event;
  if (data == "[DONE]") {
    event.done = true;
    return event;
  }
  element root;
  if (impl_->parser.parse(data.data(), data.size()).get(root) != simdjson::SUCCESS ||
      !root.is_object()) {
    event.error = "frame is not a JSON object";
    return event;
  }
  if (element error; root["error"].get(error) == simdjson::SUCCESS && !error.is_null()) {
    event.error = "error frame: " + message_of(error);
    return event;
  }
  if (simdjson::dom::array choices; root["choices"].get(choices) == simdjson::SUCCESS)
    for (element choice : choices) read_choice(choice, event);
  if (element usage; root["usage"].get(usage) == simdjson::SUCCESS && usage.is_object()) {
    event.prompt_tokens = count_of(usage, "prompt_tokens");
    event.completion_tokens = count_of(usage, "completion_tokens");
  }
  return event;
}

std::string error_message_of(std::string_view body) {
  simdjson::dom::parser parser;
  element root;
  if (parser.parse(body.data(), body.size()).get(root) == simdjson::SUCCESS && root.is_object()) {
    if (element error; root["error"].get(error) == simdjson::SUCCESS) return message_of(error);
    if (std::string_view text; root["message"].get(text) == simdjson::SUCCESS)
      return std::string(text.substr(0, kMessageBytesMax));
  }
  return std::string(body.substr(0, kMessageBytesMax));
}

}  // namespace tandem::bench

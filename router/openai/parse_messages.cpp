// Messages, checked and brought into the form that chat templates expect: contents are strings,
// arguments of tool calls are objects, fields that no template knows are gone.
#include <algorithm>
#include <array>

#include "router/openai/json_writer.h"
#include "router/openai/parse_parts.h"

namespace tandem::openai {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"developer", "system", "user",
                                                    "assistant", "tool",   "function"};
constexpr std::array<std::string_view, 7> kMediaParts = {
    "image_url", "input_audio", "file", "image", "audio_url", "video_url", "video"};

std::string at(const std::string& param, size_t index) {
  return param + "[" + std::to_string(index) + "]";
}

template <size_t Size>
bool contains(const std::array<std::string_view, Size>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Text of one content part; nullopt after a problem.
std::optional<std::string_view> read_part(const Element& element, const std::string& param,
                                          bool assistant, Problems& problems) {
  if (!element.is_object()) {
    problems.add(invalid_type(param, "an object", type_name(element)));
    return std::nullopt;
  }
  Fields part(object_of(element), param + ".", problems);
  const std::optional<std::string_view> type = part.string("type");
  if (!type) {
    if (part.find("type") == nullptr) problems.add(missing_parameter(part.path("type")));
    return std::nullopt;
  }
  const bool refusal = *type == "refusal" && assistant;
  if (*type == "text" || refusal) {
    const std::string_view name = refusal ? "refusal" : "text";
    const std::optional<std::string_view> text = part.string(name);
    if (!text && part.find(name) == nullptr) problems.add(missing_parameter(part.path(name)));
    return text;
  }
  if (contains(kMediaParts, *type)) {
    problems.add(
        unsupported_value(part.path("type"), "The model takes only text: content of type '" +
                                                 std::string(*type) + "' is not supported."));
  } else {
    problems.add(invalid_value(part.path("type"), "expected 'text'."));
  }
  return std::nullopt;
}

// Several parts are lines of one text, as other servers have it.
std::string join_parts(const Element& array, const std::string& param, bool assistant,
                       Problems& problems) {
  std::string joined;
  size_t index = 0;
  for (const Element element : array_of(array)) {
    const auto text = read_part(element, at(param, index), assistant, problems);
    if (!text) return {};
    if (index++ > 0) joined += '\n';
    joined += *text;
  }
  if (index == 0) problems.add(empty_array(param));
  return joined;
}

void write_arguments(const Element& arguments, const Limits& limits, JsonWriter& json) {
  if (arguments.is_object()) {
    json.raw(json_of(arguments));
    return;
  }
  const std::string_view text = text_of(arguments);
  if (text.find_first_not_of(" \t\r\n") == text.npos) {
    json.raw("{}");
    return;
  }
  const Parsed<Document> document = Document::parse(text, limits.depth_max);
  if (document.ok() && document->root().is_object()) {
    json.raw(json_of(document->root()));
  } else {
    json.string(text);
  }
}

void read_tool_call(const Element& element, const std::string& param, const Limits& limits,
                    JsonWriter& json, Problems& problems) {
  if (!element.is_object()) {
    problems.add(invalid_type(param, "an object", type_name(element)));
    return;
  }
  Fields call(object_of(element), param + ".", problems);
  const std::optional<std::string_view> id = call.string("id");
  if (const auto type = call.string("type"); type && *type != "function")
    problems.add(
        unsupported_value(call.path("type"), "Only tool calls of type 'function' are supported."));
  const Element* inner = call.find_object("function");
  if (inner == nullptr) {
    if (call.find("function") == nullptr) problems.add(missing_parameter(call.path("function")));
    return;
  }
  Fields function(object_of(*inner), param + ".function.", problems);
  const std::optional<std::string_view> name = function.string("name");
  if (!name && function.find("name") == nullptr)
    problems.add(missing_parameter(function.path("name")));
  const Element* arguments = function.find("arguments");
  if (arguments != nullptr && !arguments->is_string() && !arguments->is_object()) {
    problems.add(invalid_type(function.path("arguments"), "a string", type_name(*arguments)));
    return;
  }
  json.begin_object();
  if (id) json.key("id").string(*id);
  json.key("type").string("function").key("function").begin_object();
  json.key("name").string(name.value_or("")).key("arguments");
  if (arguments != nullptr) {
    write_arguments(*arguments, limits, json);
  } else {
    json.raw("{}");
  }
  json.end_object().end_object();
}

// Returns whether there are any.
bool read_tool_calls(Fields& message, const std::string& param, const Limits& limits,
                     JsonWriter& json) {
  const Element* calls = message.find_array("tool_calls");
  if (calls == nullptr) return false;
  const simdjson::dom::array array = array_of(*calls);
  if (array.begin() == array.end()) return false;
  json.key("tool_calls").begin_array();
  size_t index = 0;
  for (const Element element : array)
    read_tool_call(element, at(param + ".tool_calls", index++), limits, json, message.problems());
  json.end_array();
  return true;
}

// Returns whether a user says it.
bool read_message(const Element& element, const std::string& param, const Limits& limits,
                  JsonWriter& json, std::string& content, Problems& problems) {
  content.clear();
  if (!element.is_object()) {
    problems.add(invalid_type(param, "an object", type_name(element)));
    return false;
  }
  Fields message(object_of(element), param + ".", problems);
  const std::optional<std::string_view> role = message.string("role");
  if (!role) {
    if (message.find("role") == nullptr) problems.add(missing_parameter(message.path("role")));
    return false;
  }
  if (!contains(kRoles, *role)) {
    problems.add(invalid_value(
        message.path("role"),
        "expected 'developer', 'system', 'user', 'assistant', 'tool' or 'function'."));
    return false;
  }
  const bool assistant = *role == "assistant";
  json.begin_object();
  json.key("role").string(*role == "developer" ? "system" : *role);

  bool calls = false;
  if (assistant) {
    calls = read_tool_calls(message, param, limits, json);
    for (const std::string_view name : {"reasoning_content", "reasoning"}) {
      if (const auto reasoning = message.string(name)) json.key(name).string(*reasoning);
    }
  }
  const Element* value = message.find("content");
  if (value == nullptr) {
    if (!calls) problems.add(missing_parameter(message.path("content")));
  } else if (value->is_string()) {
    content = text_of(*value);
  } else if (value->is_array()) {
    content = join_parts(*value, message.path("content"), assistant, problems);
  } else {
    problems.add(invalid_type(message.path("content"), "a string or an array", type_name(*value)));
  }
  json.key("content").string(content);

  if (const auto name = message.string("name")) json.key("name").string(*name);
  if (*role == "tool") {
    const auto id = message.string("tool_call_id");
    if (id) {
      json.key("tool_call_id").string(*id);
    } else if (message.find("tool_call_id") == nullptr) {
      problems.add(missing_parameter(message.path("tool_call_id")));
    }
  }
  json.end_object();
  return *role == "user";
}

}  // namespace

void read_messages(const Element& messages, const Limits& limits, CompletionRequest& request,
                   Problems& problems) {
  const simdjson::dom::array array = array_of(messages);
  const size_t count = static_cast<size_t>(std::distance(array.begin(), array.end()));
  if (count == 0) {
    problems.add(empty_array("messages"));
    return;
  }
  check_length_max(count, static_cast<size_t>(limits.messages_max), "messages", true, problems);
  if (count > static_cast<size_t>(limits.messages_max)) return;
  JsonWriter json(request.messages);
  json.begin_array();
  size_t index = 0;
  for (const Element element : array) {
    const bool user = read_message(element, at("messages", index++), limits, json,
                                   request.final_content, problems);
    if (user && request.opening_bytes == 0) request.opening_bytes = request.messages.size();
  }
  json.end_array();
}

}  // namespace tandem::openai

// What would change the answer and cannot be honoured is refused, never dropped in silence.
#include "router/openai/parse_parts.h"

namespace tandem::openai {
namespace {

// Present at all is too much.
constexpr std::string_view kUnsupported[] = {
    "guided_json",    "guided_regex", "guided_choice", "guided_grammar", "guided_json_object",
    "grammar",        "json_schema",  "regex",         "ebnf",           "use_beam_search",
    "length_penalty",
};

void refuse_modalities(Fields& fields) {
  Problems& problems = fields.problems();
  if (const Element* modalities = fields.find_array("modalities")) {
    for (const Element element : array_of(*modalities)) {
      if (!element.is_string()) {
        problems.add(invalid_type("modalities", "an array of strings", type_name(element)));
      } else if (text_of(element) != "text") {
        problems.add(unsupported_value("modalities", "'modalities' supports only [\"text\"]."));
      }
    }
  }
  if (fields.find("audio") != nullptr)
    problems.add(unsupported_parameter("audio", "'audio' is not supported with this model."));
}

void refuse_response_format(Fields& fields) {
  Problems& problems = fields.problems();
  const Element* element = fields.find_object("response_format");
  if (element == nullptr) return;
  Fields format(object_of(*element), "response_format.", problems);
  const std::optional<std::string_view> type = format.string("type");
  if (!type) {
    if (!problems.any()) problems.add(missing_parameter("response_format.type"));
    return;
  }
  if (*type == "text") return;
  if (*type == "json_schema" && format.find_object("json_schema") == nullptr) {
    problems.add(missing_parameter("response_format.json_schema"));
  } else if (*type == "json_schema" || *type == "json_object") {
    problems.add(unsupported_value("response_format", "'response_format' of type '" +
                                                          std::string(*type) +
                                                          "' is not supported: only 'text' is."));
  } else {
    problems.add(
        invalid_value("response_format.type", "expected 'text', 'json_object' or 'json_schema'."));
  }
}

void refuse_prompt_logprobs(Fields& fields, const Limits& limits, bool stream) {
  Problems& problems = fields.problems();
  const std::optional<int64_t> count = fields.integer("prompt_logprobs", {-1, limits.logprobs_max});
  if (!count) return;
  if (stream && *count != 0) {
    problems.add(invalid_value("prompt_logprobs", "not available when 'stream' is true."));
  } else {
    problems.add(unsupported_value("prompt_logprobs",
                                   "'prompt_logprobs' is not supported in this release."));
  }
}

}  // namespace

void refuse_unsupported(Fields& fields, const Limits& limits, CompletionRequest& request) {
  Problems& problems = fields.problems();
  refuse_modalities(fields);
  refuse_response_format(fields);
  refuse_prompt_logprobs(fields, limits, request.stream);
  for (const std::string_view name : {"structured_outputs"}) {
    const Element* element = fields.find_object(name);
    if (element == nullptr) continue;
    const simdjson::dom::object object = object_of(*element);
    if (object.begin() != object.end())
      problems.add(
          unsupported_value(name, "'structured_outputs' is not supported in this release."));
  }
  for (const std::string_view name : {"allowed_token_ids", "bad_words"}) {
    const Element* element = fields.find_array(name);
    if (element == nullptr) continue;
    const simdjson::dom::array array = array_of(*element);
    if (array.begin() != array.end()) {
      problems.add(
          unsupported_value(name, "'" + std::string(name) + "' is not supported in this release."));
    }
  }
  for (const std::string_view name : kUnsupported) {
    const Element* element = fields.find(name);
    if (element == nullptr || (element->is_bool() && !element->get_bool().value_unsafe())) continue;
    problems.add(
        unsupported_value(name, "'" + std::string(name) + "' is not supported in this release."));
  }
}

}  // namespace tandem::openai

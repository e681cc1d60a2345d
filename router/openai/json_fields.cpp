#include "router/openai/json_fields.h"

#include <charconv>
#include <cmath>
#include <utility>

namespace tandem::openai {
namespace {

std::string_view parse_failure(simdjson::error_code error) {
  switch (error) {
    case simdjson::EMPTY:
      return "the body is empty";
    case simdjson::UTF8_ERROR:
      return "the text is not valid UTF-8";
    case simdjson::NUMBER_ERROR:
      return "a number is malformed or out of range";
    case simdjson::DEPTH_ERROR:
      return "it is nested too deeply";
    case simdjson::CAPACITY:
      return "it is too large";
    case simdjson::UNCLOSED_STRING:
      return "a string has no end";
    case simdjson::UNESCAPED_CHARS:
      return "a string holds an unescaped control character";
    case simdjson::STRING_ERROR:
      return "a string holds a malformed escape";
    default:
      return "it is malformed or truncated";
  }
}

std::string shown(double value) {
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

void out_of_range(std::string_view param, std::string_view kind, bool below,
                  std::string_view comparison, const std::string& limit, const std::string& got,
                  Problems& problems) {
  const std::string side = below ? "below minimum" : "above maximum";
  problems.add(
      invalid_request(param, std::string(kind) + (below ? "_below_min_value" : "_above_max_value"),
                      "Invalid '" + std::string(param) + "': " + std::string(kind) + " " + side +
                          " value. Expected a value " + std::string(comparison) + " " + limit +
                          ", but got " + got + " instead."));
}

}  // namespace

Parsed<Document> Document::parse(std::string_view body, int depth_max) {
  Document document;
  document.parser_ = std::make_unique<simdjson::dom::parser>();
  const size_t depth = static_cast<size_t>(depth_max);
  simdjson::error_code error = document.parser_->allocate(body.size() + 1, depth);
  if (error == simdjson::SUCCESS)
    error = document.parser_->parse(body.data(), body.size()).get(document.root_);
  if (error != simdjson::SUCCESS) return invalid_json(parse_failure(error));
  return document;
}

Parsed<Document> Document::parse_object(std::string_view body, int depth_max) {
  Parsed<Document> document = parse(body, depth_max);
  if (document.ok() && !document->root().is_object()) {
    return invalid_request("", "invalid_type",
                           "Invalid type for the request body: expected an object, but got " +
                               std::string(type_name(document->root())) + " instead.");
  }
  return document;
}

std::string_view type_name(const Element& element) {
  switch (element.type()) {
    case Type::ARRAY:
      return "an array";
    case Type::OBJECT:
      return "an object";
    case Type::INT64:
    case Type::UINT64:
      return "an integer";
    case Type::DOUBLE:
      return "a decimal";
    case Type::STRING:
      return "a string";
    case Type::BOOL:
      return "a boolean";
    case Type::NULL_VALUE:
      return "null";
  }
  return "something else";
}

std::string_view text_of(const Element& element) { return element.get_string().value_unsafe(); }

simdjson::dom::array array_of(const Element& element) { return element.get_array().value_unsafe(); }

simdjson::dom::object object_of(const Element& element) {
  return element.get_object().value_unsafe();
}

std::string json_of(const Element& element) { return simdjson::minify(element); }

void Problems::add(ApiError error) {
  std::optional<ApiError>& slot = error.code == "invalid_type" ? type_ : other_;
  if (!slot) slot = std::move(error);
}

std::optional<int64_t> read_integer(const Element& element, std::string_view param, Range range,
                                    Problems& problems) {
  int64_t value = 0;
  switch (element.type()) {
    case Type::INT64:
      value = element.get_int64().value_unsafe();
      break;
    case Type::UINT64:  // Beyond int64: simdjson uses this type for nothing else.
      out_of_range(param, "integer", false, "<=", std::to_string(range.max),
                   std::to_string(element.get_uint64().value_unsafe()), problems);
      return std::nullopt;
    case Type::DOUBLE: {
      const double decimal = element.get_double().value_unsafe();
      if (decimal != std::floor(decimal)) {
        problems.add(invalid_type(param, "an integer", "a decimal"));
        return std::nullopt;
      }
      constexpr double kExactMax = 9007199254740992.0;  // 2^53
      if (decimal < -kExactMax || decimal > kExactMax) {
        const bool below = decimal < 0;
        out_of_range(param, "integer", below,
                     below ? ">=" : "<=", std::to_string(below ? range.min : range.max),
                     shown(decimal), problems);
        return std::nullopt;
      }
      value = static_cast<int64_t>(decimal);
      break;
    }
    default:
      problems.add(invalid_type(param, "an integer", type_name(element)));
      return std::nullopt;
  }
  if (value < range.min || value > range.max) {
    const bool below = value < range.min;
    out_of_range(param, "integer", below,
                 below ? ">=" : "<=", std::to_string(below ? range.min : range.max),
                 std::to_string(value), problems);
    return std::nullopt;
  }
  return value;
}

std::optional<double> read_number(const Element& element, std::string_view param,
                                  DecimalRange range, Problems& problems) {
  double value = 0;
  if (!element.is_number() || element.get_double().get(value) != simdjson::SUCCESS) {
    problems.add(invalid_type(param, "a decimal", type_name(element)));
    return std::nullopt;
  }
  const bool below = value < range.min || (range.above_min && value == range.min);
  if (below || value > range.max) {
    const std::string_view comparison = !below ? "<=" : range.above_min ? ">" : ">=";
    out_of_range(param, "decimal", below, comparison, shown(below ? range.min : range.max),
                 shown(value), problems);
    return std::nullopt;
  }
  return value;
}

void check_length_max(size_t length, size_t max, std::string_view param, bool is_array,
                      Problems& problems) {
  if (length <= max) return;
  const std::string kind = is_array ? "array" : "string";
  const std::string article = is_array ? "an array" : "a string";
  problems.add(invalid_request(param, kind + "_above_max_length",
                               "Invalid '" + std::string(param) + "': " + kind +
                                   " too long. Expected " + article + " with maximum length " +
                                   std::to_string(max) + ", but got " + article + " with length " +
                                   std::to_string(length) + " instead."));
}

Fields::Fields(simdjson::dom::object object, std::string prefix, Problems& problems)
    : prefix_(std::move(prefix)), problems_(problems) {
  for (const simdjson::dom::key_value_pair field : object)
    fields_.insert_or_assign(field.key, Field{field.value, false});
}

const Element* Fields::find(std::string_view name) {
  const auto found = fields_.find(name);
  if (found == fields_.end()) return nullptr;
  found->second.known = true;
  return found->second.value.is_null() ? nullptr : &found->second.value;
}

void Fields::wrong_type(std::string_view name, std::string_view expected, const Element& found) {
  problems_.add(invalid_type(path(name), expected, type_name(found)));
}

const Element* Fields::find_array(std::string_view name) {
  const Element* element = find(name);
  if (element == nullptr || element->is_array()) return element;
  wrong_type(name, "an array", *element);
  return nullptr;
}

const Element* Fields::find_object(std::string_view name) {
  const Element* element = find(name);
  if (element == nullptr || element->is_object()) return element;
  wrong_type(name, "an object", *element);
  return nullptr;
}

std::optional<std::string_view> Fields::string(std::string_view name, size_t bytes_max) {
  const Element* element = find(name);
  if (element == nullptr) return std::nullopt;
  if (!element->is_string()) {
    wrong_type(name, "a string", *element);
    return std::nullopt;
  }
  const std::string_view text = text_of(*element);
  check_length_max(text.size(), bytes_max, path(name), false, problems_);
  return text;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Element* element = find(name);
  if (element == nullptr) return std::nullopt;
  if (!element->is_bool()) {
    wrong_type(name, "a boolean", *element);
    return std::nullopt;
  }
  return element->get_bool().value_unsafe();
}

std::optional<int64_t> Fields::integer(std::string_view name, Range range) {
  const Element* element = find(name);
  if (element == nullptr) return std::nullopt;
  return read_integer(*element, path(name), range, problems_);
}

std::optional<double> Fields::number(std::string_view name, DecimalRange range) {
  const Element* element = find(name);
  if (element == nullptr) return std::nullopt;
  return read_number(*element, path(name), range, problems_);
}

void Fields::accept(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) find(name);
}

std::vector<std::string_view> Fields::unknown() const {
  std::vector<std::string_view> names;
  for (const auto& [name, field] : fields_) {
    if (!field.known) names.push_back(name);
  }
  return names;
}

}  // namespace tandem::openai

// Reading JSON bodies field by field, with errors in the API's words. Internal to router/openai.
//
// A Document owns the parsed text; Elements and Fields point into it. Errors are collected, so that
// wrong types are reported before values out of range whatever the order of reading. One caller.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/openai/api_error.h"

namespace tandem::openai {

using Element = simdjson::dom::element;
using Type = simdjson::dom::element_type;

class Document {
 public:
  // Requires valid UTF-8 and finite numbers; nesting at most `depth_max`.
  static Parsed<Document> parse(std::string_view body, int depth_max);
  // parse(), and the root must be an object.
  static Parsed<Document> parse_object(std::string_view body, int depth_max);

  const Element& root() const { return root_; }

 private:
  std::unique_ptr<simdjson::dom::parser> parser_;
  Element root_;
};

// "a string", "an integer", ...
std::string_view type_name(const Element& element);
// Text of a string element. Requires: it is one.
std::string_view text_of(const Element& element);
// By value: simdjson's own accessors hand out references into temporaries. Requires: it is one.
simdjson::dom::array array_of(const Element& element);
simdjson::dom::object object_of(const Element& element);
// The same JSON, compact.
std::string json_of(const Element& element);

// The first wrong type, else the first other error.
class Problems {
 public:
  void add(ApiError error);
  bool any() const { return type_.has_value() || other_.has_value(); }
  // Requires: any().
  ApiError first() const { return type_ ? *type_ : *other_; }

 private:
  std::optional<ApiError> type_;
  std::optional<ApiError> other_;
};

struct Range {
  int64_t min = INT64_MIN;
  int64_t max = INT64_MAX;
};

struct DecimalRange {
  double min;
  double max;
  bool above_min = false;  // `min` itself is too small
};

// One value as an integer within `range`; 1.0 is one, true and "1" are not.
std::optional<int64_t> read_integer(const Element& element, std::string_view param, Range range,
                                    Problems& problems);
std::optional<double> read_number(const Element& element, std::string_view param,
                                  DecimalRange range, Problems& problems);

void check_length_max(size_t length, size_t max, std::string_view param, bool is_array,
                      Problems& problems);

// The fields of one object. Of fields with equal names the last counts; null is absent.
class Fields {
 public:
  // `prefix` goes before names in errors: "stream_options.".
  Fields(simdjson::dom::object object, std::string prefix, Problems& problems);

  // nullptr when absent. Marks the field as known.
  const Element* find(std::string_view name);
  const Element* find_array(std::string_view name);
  const Element* find_object(std::string_view name);
  std::optional<std::string_view> string(std::string_view name, size_t bytes_max = SIZE_MAX);
  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, Range range = {});
  std::optional<double> number(std::string_view name, DecimalRange range);

  // Known names that need no reading.
  void accept(std::initializer_list<std::string_view> names);
  std::vector<std::string_view> unknown() const;

  std::string path(std::string_view name) const { return prefix_ + std::string(name); }
  Problems& problems() { return problems_; }

 private:
  struct Field {
    Element value;
    bool known = false;
  };

  void wrong_type(std::string_view name, std::string_view expected, const Element& found);

  std::map<std::string_view, Field> fields_;
  std::string prefix_;
  Problems& problems_;
};

}  // namespace tandem::openai

// JsonWriter: appends compact JSON to a string. Commas are its business; nesting is the caller's.
// Strings come out as valid UTF-8 on one line, numbers finite, whatever goes in. One caller.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::openai {

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& string(std::string_view text);
  template <std::integral Number>
  JsonWriter& integer(Number value) {
    return raw(std::to_string(value));
  }
  JsonWriter& boolean(bool value) { return raw(value ? "true" : "false"); }
  JsonWriter& null() { return raw("null"); }
  // The shortest text that reads back as `value`, so that equal values are equal text.
  JsonWriter& number(float value);
  // Text that is JSON already.
  JsonWriter& raw(std::string_view json);

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();

  std::string& out_;
  bool comma_ = false;  // A value came before, on this level
};

}  // namespace tandem::openai

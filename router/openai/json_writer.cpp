#include "router/openai/json_writer.h"

#include <charconv>
#include <cmath>

#include "router/openai/utf8.h"

namespace tandem::openai {
namespace {

void append_escape(std::string& out, unsigned char control) {
  static constexpr char kHex[] = "0123456789abcdef";
  switch (control) {
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      out += "\\u00";
      out += kHex[control >> 4];
      out += kHex[control & 15];
  }
}

// Line separators outside ASCII, where some clients break the lines of a stream: NEL, LS and PS.
std::string_view separator_escape(std::string_view text) {
  if (text.starts_with("\xC2\x85")) return "\\u0085";
  if (text.starts_with("\xE2\x80\xA8")) return "\\u2028";
  if (text.starts_with("\xE2\x80\xA9")) return "\\u2029";
  return {};
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  size_t plain = 0;  // Start of the run that needs no escape
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0xC2 && byte != 0xE2) continue;
    if (byte >= 0x80) {
      const std::string_view escape = separator_escape(text.substr(i));
      if (escape.empty()) continue;
      out.append(text, plain, i - plain);
      out += escape;
      i += byte == 0xC2 ? 1 : 2;
    } else {
      out.append(text, plain, i - plain);
      if (byte < 0x20) {
        append_escape(out, byte);
      } else {
        out += '\\';
        out += static_cast<char>(byte);
      }
    }
    plain = i + 1;
  }
  out.append(text, plain, text.size() - plain);
  out += '"';
}

}  // namespace

void JsonWriter::separate() {
  if (comma_) out_ += ',';
  comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_ += bracket;
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  string(name);
  out_ += ':';
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  if (is_valid_utf8(text)) {
    append_quoted(out_, text);
  } else {
    append_quoted(out_, to_valid_utf8(text));
  }
  return *this;
}

JsonWriter& JsonWriter::number(float value) {
  separate();
  if (!std::isfinite(value)) value = std::signbit(value) || std::isnan(value) ? -9999.0f : 9999.0f;
  if (value == 0) value = 0;  // No "-0"
  char text[48];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  const std::string_view shown(text, static_cast<size_t>(end.ptr - text));
  out_ += shown;
  if (shown.find_first_of(".e") == std::string_view::npos) out_ += ".0";
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  return *this;
}

}  // namespace tandem::openai

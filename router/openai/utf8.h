// UTF-8: bytes that arrive in pieces, to whole code points.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::openai {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Incremental decoder. Appends only whole code points; a maximal invalid piece becomes one U+FFFD
// as soon as it cannot become valid. One stream, one caller.
class Utf8Decoder {
 public:
  // Appends what is complete to `out` and returns how many code points that was.
  size_t feed(std::string_view bytes, std::string& out);
  // Gives up on what waits if `next` cannot continue it.
  size_t settle(char next, std::string& out);
  // The end: what waits becomes U+FFFD.
  size_t finish(std::string& out);
  size_t waiting() const { return size_; }

 private:
  size_t push(unsigned char byte, std::string& out);
  bool continues(unsigned char byte) const;

  char bytes_[4] = {};
  size_t size_ = 0;    // Bytes that wait
  size_t needed_ = 0;  // Length of the code point that they begin
};

bool is_valid_utf8(std::string_view bytes);
// `bytes` with every invalid piece replaced.
std::string to_valid_utf8(std::string_view bytes);
// Requires: valid UTF-8.
size_t count_code_points(std::string_view text);

}  // namespace tandem::openai

#include "router/openai/utf8.h"

namespace tandem::openai {
namespace {

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// Length of the code point that `lead` begins; 1 for ASCII, 0 for a byte that begins none.
size_t length_from_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// The second byte decides about overlong forms, surrogates and values beyond U+10FFFF.
bool second_byte_fits(unsigned char lead, unsigned char byte) {
  if (!is_continuation(byte)) return false;
  switch (lead) {
    case 0xE0:
      return byte >= 0xA0;
    case 0xED:
      return byte <= 0x9F;
    case 0xF0:
      return byte >= 0x90;
    case 0xF4:
      return byte <= 0x8F;
    default:
      return true;
  }
}

}  // namespace

bool Utf8Decoder::continues(unsigned char byte) const {
  if (size_ == 1) return second_byte_fits(static_cast<unsigned char>(bytes_[0]), byte);
  return is_continuation(byte);
}

size_t Utf8Decoder::push(unsigned char byte, std::string& out) {
  if (size_ > 0) {
    if (!continues(byte)) {
      const size_t given_up = finish(out);
      return given_up + push(byte, out);
    }
    bytes_[size_++] = static_cast<char>(byte);
    if (size_ < needed_) return 0;
    out.append(bytes_, size_);
    size_ = 0;
    return 1;
  }
  needed_ = length_from_lead(byte);
  if (needed_ > 1) {
    bytes_[size_++] = static_cast<char>(byte);
    return 0;
  }
  if (needed_ == 1) {
    out.push_back(static_cast<char>(byte));
  } else {
    out.append(kReplacement);
  }
  return 1;
}

size_t Utf8Decoder::feed(std::string_view bytes, std::string& out) {
  size_t code_points = 0;
  for (const char byte : bytes) code_points += push(static_cast<unsigned char>(byte), out);
  return code_points;
}

size_t Utf8Decoder::settle(char next, std::string& out) {
  if (size_ == 0 || continues(static_cast<unsigned char>(next))) return 0;
  return finish(out);
}

size_t Utf8Decoder::finish(std::string& out) {
  if (size_ == 0) return 0;
  size_ = 0;
  out.append(kReplacement);
  return 1;
}

bool is_valid_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const size_t length = length_from_lead(static_cast<unsigned char>(bytes[i]));
    if (length == 0 || bytes.size() - i < length) return false;
    for (size_t k = 1; k < length; ++k) {
      const unsigned char byte = static_cast<unsigned char>(bytes[i + k]);
      const bool good = k == 1 ? second_byte_fits(static_cast<unsigned char>(bytes[i]), byte)
                               : is_continuation(byte);
      if (!good) return false;
    }
    i += length;
  }
  return true;
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  Utf8Decoder decoder;
  decoder.feed(bytes, out);
  decoder.finish(out);
  return out;
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (const char byte : text) count += is_continuation(static_cast<unsigned char>(byte)) ? 0 : 1;
  return count;
}

}  // namespace tandem::openai

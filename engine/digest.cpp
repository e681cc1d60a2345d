#include "engine/digest.h"

#include <array>

namespace tandem {

namespace {
constexpr size_t kDigestBytes = 16;
}

Digest::Digest(std::string_view domain) {
  crypto_generichash_init(&state_, nullptr, 0, kDigestBytes);
  add(domain);
}

void Digest::add(std::string_view field) { add(std::as_bytes(std::span(field))); }

void Digest::add(uint64_t field) {
  std::array<unsigned char, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(field >> (8 * i));
  }
  crypto_generichash_update(&state_, bytes.data(), bytes.size());
}

void Digest::add(std::span<const std::byte> field) {
  add(static_cast<uint64_t>(field.size()));
  crypto_generichash_update(&state_, reinterpret_cast<const unsigned char*>(field.data()),
                            field.size());
}

std::string Digest::hex() {
  std::array<unsigned char, kDigestBytes> digest;
  crypto_generichash_final(&state_, digest.data(), digest.size());
  std::array<char, kDigestBytes * 2 + 1> text;
  sodium_bin2hex(text.data(), text.size(), digest.data(), digest.size());
  return std::string(text.data());
}

}  // namespace tandem

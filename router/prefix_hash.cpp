#include "router/prefix_hash.h"

#include <sodium.h>

#include <cstring>

#include "common/random.h"

namespace tandem::router {

PrefixHasher::PrefixHasher() : key_(random_bytes(crypto_shorthash_KEYBYTES)) {}

// SipHash-2-4: made for short inputs under a secret key.
uint64_t PrefixHasher::hash(std::string_view bytes) const {
  static_assert(crypto_shorthash_BYTES == sizeof(uint64_t));
  uint64_t out = 0;
  crypto_shorthash(reinterpret_cast<unsigned char*>(&out),
                   reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                   reinterpret_cast<const unsigned char*>(key_.data()));
  return out == 0 ? 1 : out;
}

uint64_t PrefixHasher::name(std::string_view domain, std::string_view text) const {
  std::string bytes(domain);
  bytes += '\0';
  bytes += text;
  return hash(bytes);
}

std::vector<uint64_t> PrefixHasher::blocks(uint64_t root, std::span<const TokenId> tokens,
                                           size_t block_tokens) const {
  std::vector<uint64_t> names;
  const size_t block_bytes = block_tokens * sizeof(TokenId);
  std::string bytes(sizeof root + block_bytes, '\0');
  for (; tokens.size() >= block_tokens; tokens = tokens.subspan(block_tokens)) {
    std::memcpy(bytes.data(), &root, sizeof root);
    std::memcpy(bytes.data() + sizeof root, tokens.data(), block_bytes);
    root = hash(bytes);
    names.push_back(root);
  }
  return names;
}

uint64_t PrefixHasher::fingerprint(uint64_t root, std::span<const TokenId> tokens) const {
  return name(std::to_string(root),
              {reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
}

}  // namespace tandem::router

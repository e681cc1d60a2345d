// Digests that two processes compare: BLAKE2b of 128 bits, as hex. Fields are length-prefixed, so
// that two different lists of fields never give the same input. One thread per Digest.
#pragma once

#include <sodium.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem {

class Digest {
 public:
  // `domain`: what is being hashed, so that digests of different things never agree.
  explicit Digest(std::string_view domain);

  void add(std::string_view field);
  void add(uint64_t field);
  void add(std::span<const std::byte> field);
  std::string hex();

 private:
  crypto_generichash_state state_;
};

}  // namespace tandem

#include "common/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace tandem {

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t seed) {
  constexpr size_t kPieceMax = size_t{1} << 30;  // The library takes an int
  uint32_t state = ~seed;
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kPieceMax);
    // The library's signature lacks a const; it only reads.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(count), state);
    bytes = bytes.subspan(count);
  }
  return ~state;
}

}  // namespace tandem

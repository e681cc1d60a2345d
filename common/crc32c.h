// CRC-32C (Castagnoli), the checksum of every KV unit. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

// `seed` is the checksum of the bytes before these: crc32c(b, crc32c(a)) is that of a followed by
// b.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t seed = 0);

}  // namespace tandem

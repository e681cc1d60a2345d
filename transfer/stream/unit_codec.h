// What travels on a transport beside the rows: LANDED with the units of a put group, and CREDIT
// back. Little endian, binary, a few dozen bytes; decoding checks lengths and kinds, the receiver
// checks the meaning.
//
//   LANDED  u8 1 | u64 transfer | u64 key | u16 count | count units   (no unit: "I am alive", and a
//   flush)
//     unit  u64 sequence | u64 offset | u32 bytes | u32 first | u32 count | u32 crc32c | u16 layer
//     | u8 part
//   CREDIT  u8 2 | u64 transfer | u64 key | u64 units consumed, all below that number
// `key` is the random number of the grant: a message of an earlier grant, or of somebody else, does
// not have it. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/types.h"
#include "engine/engine.h"

namespace tandem::transfer {

struct Unit {
  uint64_t sequence = 0;
  uint64_t offset = 0;  // In the segment
  uint32_t bytes = 0;
  uint32_t first = 0;  // Row
  uint32_t count = 0;  // Rows
  uint32_t crc = 0;
  uint16_t layer = 0;
  KvPart part = KvPart::kKey;
  bool operator==(const Unit&) const = default;
};

inline constexpr size_t kUnitsPerMessageMax = 512;

struct Landed {
  TransferId transfer;
  uint64_t key = 0;
  std::vector<Unit> units;

  // Requires: at most kUnitsPerMessageMax units.
  std::string encode() const;
  static Result<Landed> decode(std::string_view message);
};

struct Credit {
  TransferId transfer;
  uint64_t key = 0;
  uint64_t consumed = 0;

  std::string encode() const;
  static Result<Credit> decode(std::string_view message);
};

}  // namespace tandem::transfer

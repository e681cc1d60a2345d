#include "transfer/stream/unit_codec.h"

#include <bit>
#include <cstring>

namespace tandem::transfer {
namespace {

static_assert(std::endian::native == std::endian::little,
              "fields are copied as they lie in memory");

constexpr uint8_t kLandedKind = 1;
constexpr uint8_t kCreditKind = 2;
constexpr size_t kUnitBytes = 8 + 8 + 4 * 4 + 2 + 1;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Requires: the caller has checked that enough is left.
template <class T>
T get(std::string_view& in) {
  T value{};
  std::memcpy(&value, in.data(), sizeof value);
  in.remove_prefix(sizeof value);
  return value;
}

Status malformed(std::string_view what) {
  return Status(ErrorCode::kInvalidArgument, "malformed " + std::string(what));
}

}  // namespace

std::string Landed::encode() const {
  TANDEM_CHECK(units.size() <= kUnitsPerMessageMax, "too many units in a message");
  std::string out;
  out.reserve(19 + units.size() * kUnitBytes);
  put(out, kLandedKind);
  put(out, transfer.value);
  put(out, key);
  put(out, static_cast<uint16_t>(units.size()));
  for (const Unit& unit : units) {
    put(out, unit.sequence);
    put(out, unit.offset);
    put(out, unit.bytes);
    put(out, unit.first);
    put(out, unit.count);
    put(out, unit.crc);
    put(out, unit.layer);
    put(out, static_cast<uint8_t>(unit.part));
  }
  return out;
}

Result<Landed> Landed::decode(std::string_view message) {
  if (message.size() < 19 || get<uint8_t>(message) != kLandedKind) return malformed("LANDED");
  Landed landed;
  landed.transfer.value = get<uint64_t>(message);
  landed.key = get<uint64_t>(message);
  const auto count = get<uint16_t>(message);
  if (count > kUnitsPerMessageMax || message.size() != count * kUnitBytes)
    return malformed("LANDED");
  landed.units.resize(count);
  for (Unit& unit : landed.units) {
    unit.sequence = get<uint64_t>(message);
    unit.offset = get<uint64_t>(message);
    unit.bytes = get<uint32_t>(message);
    unit.first = get<uint32_t>(message);
    unit.count = get<uint32_t>(message);
    unit.crc = get<uint32_t>(message);
    unit.layer = get<uint16_t>(message);
    const auto part = get<uint8_t>(message);
    if (part > static_cast<uint8_t>(KvPart::kValue)) return malformed("LANDED");
    unit.part = static_cast<KvPart>(part);
  }
  return landed;
}

std::string Credit::encode() const {
  std::string out;
  out.reserve(25);
  put(out, kCreditKind);
  put(out, transfer.value);
  put(out, key);
  put(out, consumed);
  return out;
}

Result<Credit> Credit::decode(std::string_view message) {
  if (message.size() != 25 || get<uint8_t>(message) != kCreditKind) return malformed("CREDIT");
  Credit credit;
  credit.transfer.value = get<uint64_t>(message);
  credit.key = get<uint64_t>(message);
  credit.consumed = get<uint64_t>(message);
  return credit;
}

}  // namespace tandem::transfer

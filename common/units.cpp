#include "common/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace tandem {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

// Largest first: format_bytes() takes the first of these that divides.
constexpr std::array<Unit, 4> kBinary = {
    {{"TiB", 0x1p40}, {"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}}};
constexpr std::array<Unit, 6> kDecimal = {
    {{"", 1}, {"B", 1}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}};
constexpr std::array<Unit, 5> kDurations = {
    {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {"h", 3600e6}}};

// "1.5GiB" to 1.5 and "GiB". No number: empty.
std::optional<std::pair<double, std::string_view>> split(std::string_view text) {
  const size_t end = text.find_first_not_of("0123456789.");
  const auto number = parse_number(text.substr(0, end));
  if (!number) return std::nullopt;
  return std::pair(*number, end == std::string_view::npos ? "" : text.substr(end));
}

template <size_t N>
std::optional<double> factor_of(const std::array<Unit, N>& units, std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return unit.factor;
  }
  return std::nullopt;
}

std::optional<int64_t> whole(double value) {
  if (!(value >= 0 && value < 0x1p63) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

}  // namespace

std::optional<int64_t> parse_bytes(std::string_view text) {
  if (const auto exact = parse_integer(text); exact) {  // Beyond 2^53 a double would round
    return *exact >= 0 ? exact : std::nullopt;
  }
  const auto parts = split(text);
  if (!parts) return std::nullopt;
  auto factor = factor_of(kBinary, parts->second);
  if (!factor) factor = factor_of(kDecimal, parts->second);
  return factor ? whole(parts->first * *factor) : std::nullopt;
}

std::string format_bytes(int64_t bytes) {
  for (const Unit& unit : kBinary) {
    const auto factor = static_cast<int64_t>(unit.factor);
    if (bytes >= factor && bytes % factor == 0) {
      return std::to_string(bytes / factor) + std::string(unit.name);
    }
  }
  return std::to_string(bytes);
}

std::optional<std::chrono::microseconds> parse_duration(std::string_view text) {
  const auto parts = split(text);
  if (!parts) return std::nullopt;
  const auto factor = factor_of(kDurations, parts->second);
  if (!factor) return std::nullopt;
  const auto us = whole(parts->first * *factor);
  if (!us) return std::nullopt;
  return std::chrono::microseconds(*us);
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

}  // namespace tandem

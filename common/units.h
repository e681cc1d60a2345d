// Sizes and durations as people write them: 64MiB, 2GiB, 500ms, 1.5s. Pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

// A whole number of bytes: digits, then nothing, B, KiB, MiB, GiB or TiB (1024), or kB, MB, GB, TB
// (1000). A fraction is allowed where the result is whole. Empty for anything else.
std::optional<int64_t> parse_bytes(std::string_view text);
// The shortest form that parse_bytes() reads back to the same number: "64MiB", "1500".
std::string format_bytes(int64_t bytes);

// A number, then us, ms, s, m or h. A number alone is empty: it would hide its unit.
std::optional<std::chrono::microseconds> parse_duration(std::string_view text);
// A whole number, or the whole of `text` as one finite decimal number.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_number(std::string_view text);

}  // namespace tandem

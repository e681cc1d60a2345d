// Decoding in pieces equals decoding at once, whatever the bytes; the stop matcher equals a search
// by hand.
#include "router/openai/utf8.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "common/random.h"
#include "router/openai/stop_matcher.h"

namespace tandem::openai {
namespace {

TEST_CASE("whole code points pass and pieces wait") {
  Utf8Decoder decoder;
  std::string out;
  CHECK(decoder.feed("a\xE2\x82", out) == 1);
  CHECK(out == "a");
  CHECK(decoder.waiting() == 2);
  CHECK(decoder.feed("\xAC", out) == 1);
  CHECK(out == "a\xE2\x82\xAC");
  CHECK(decoder.finish(out) == 0);
}

TEST_CASE("each maximal invalid piece becomes one replacement character at once") {
  const std::string r(kReplacement);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xFFx", r + "x"},
      {"\x80\x80", r + r},
      {"\xC0\xAF", r + r},                  // Overlong
      {"\xE0\x80\x80", r + r + r},          // Overlong
      {"\xED\xA0\x80", r + r + r},          // Surrogate
      {"\xF4\x90\x80\x80", r + r + r + r},  // Beyond U+10FFFF
      {"\xE2\x82x", r + "x"},
      {"\xE2\xE2\x82\xAC", r + "\xE2\x82\xAC"},
      {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
      {"\xF0\x9F\x98", r},
  };
  for (const auto& [bytes, text] : cases) {
    CHECK(to_valid_utf8(bytes) == text);
    CHECK(is_valid_utf8(bytes) == (bytes == text));
  }
}

TEST_CASE("any chunking of any bytes decodes to the same text") {
  const uint64_t seed = seed_from_environment();
  INFO("TANDEM_SEED=" << seed);
  std::mt19937_64 random(seed);
  const std::string alphabet = "a\x80\xBF\xC2\xE2\x82\xAC\xED\xA0\xF0\x9F\x98\xF4\xFF\xE0";
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (size_t i = random() % 20; i > 0; --i) bytes += alphabet[random() % alphabet.size()];
    Utf8Decoder decoder;
    std::string out;
    size_t count = 0;
    for (size_t at = 0; at < bytes.size();) {
      const size_t step = 1 + random() % 4;
      const std::string_view piece = std::string_view(bytes).substr(at, step);
      count += decoder.settle(piece.front(), out);
      count += decoder.feed(piece, out);
      CHECK(decoder.waiting() <= 3);
      at += step;
    }
    count += decoder.finish(out);
    REQUIRE(out == to_valid_utf8(bytes));
    REQUIRE(is_valid_utf8(out));
    REQUIRE(count == count_code_points(out));
  }
}

// The match with the earliest end, of those the longest: (end, length), or (-1, 0).
std::pair<int, int> search(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t best = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) best = std::max(best, stop.size());
    }
    if (best > 0) return {static_cast<int>(end), static_cast<int>(best)};
  }
  return {-1, 0};
}

size_t longest_prefix_at_end(const std::string& text, const std::vector<std::string>& stops) {
  size_t best = 0;
  for (const std::string& stop : stops) {
    for (size_t size = 1; size < stop.size(); ++size) {
      if (text.ends_with(stop.substr(0, size))) best = std::max(best, size);
    }
  }
  return best;
}

TEST_CASE("the matcher finds what a search by hand finds and holds no byte more") {
  const uint64_t seed = seed_from_environment();
  INFO("TANDEM_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) {
      for (size_t i = 1 + random() % 5; i > 0; --i) stop += static_cast<char>('a' + random() % 2);
    }
    std::string text;
    for (size_t i = random() % 24; i > 0; --i) text += static_cast<char>('a' + random() % 3);
    const auto [end, length] = search(text, stops);
    StopMatcher matcher(stops);
    for (size_t i = 0; i < text.size(); ++i) {
      const int found = matcher.feed(text[i], true);
      if (static_cast<int>(i) + 1 == end) {
        REQUIRE(found >= 0);
        REQUIRE(static_cast<int>(matcher.stop(found).size()) == length);
        break;
      }
      REQUIRE(found == -1);
      REQUIRE(matcher.held() == longest_prefix_at_end(text.substr(0, i + 1), stops));
    }
  }
}

}  // namespace
}  // namespace tandem::openai

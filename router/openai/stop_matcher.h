// StopMatcher: finds stop strings in text that arrives byte by byte, in constant time per byte and
// string (Knuth, Morris and Pratt). The match that ends first wins; of several that end there, the
// longest. One stream, one caller.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tandem::openai {

class StopMatcher {
 public:
  // Requires: no string is empty.
  explicit StopMatcher(std::vector<std::string> stops);

  // Takes the next byte. Returns the index of the stop string that it completes, or -1. With
  // `armed` false, matches that end here are passed over.
  int feed(char byte, bool armed);
  // Length of the longest suffix of the text that is a proper prefix of a stop string.
  size_t held() const { return held_; }
  const std::string& stop(int index) const { return patterns_[static_cast<size_t>(index)].text; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> failure;  // Longest proper border of each prefix
    size_t matched = 0;
  };

  std::vector<Pattern> patterns_;
  size_t held_ = 0;
};

}  // namespace tandem::openai

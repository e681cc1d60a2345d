#include "router/openai/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace tandem::openai {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  patterns_.reserve(stops.size());
  for (std::string& stop : stops) {
    Pattern pattern{std::move(stop), {}, 0};
    const std::string& text = pattern.text;
    pattern.failure.assign(text.size() + 1, 0);
    for (size_t i = 1, border = 0; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) border = pattern.failure[border];
      if (text[i] == text[border]) ++border;
      pattern.failure[i + 1] = border;
    }
    patterns_.push_back(std::move(pattern));
  }
}

int StopMatcher::feed(char byte, bool armed) {
  int found = -1;
  held_ = 0;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& pattern = patterns_[i];
    while (pattern.matched > 0 && pattern.text[pattern.matched] != byte)
      pattern.matched = pattern.failure[pattern.matched];
    if (pattern.text[pattern.matched] == byte) ++pattern.matched;
    if (pattern.matched == pattern.text.size()) {
      const bool longer =
          found < 0 || pattern.text.size() > patterns_[static_cast<size_t>(found)].text.size();
      if (armed && longer) found = static_cast<int>(i);
      pattern.matched = pattern.failure[pattern.matched];
    }
    held_ = std::max(held_, pattern.matched);
  }
  return found;
}

}  // namespace tandem::openai

// Prompts of an exact number of tokens, made of words that the server's own tokenizer turns into
// one token each. One owner; make() may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/status.h"

namespace tandem::bench {

// What a prompt shares with others and how long it is.
struct PromptShape {
  int tokens = 0;         // In all, the shared part included
  int shared_prefix = 0;  // This many first tokens are the same in every prompt of one seed
  uint64_t unique = 0;    // Decides the words that are shared with nobody
  std::vector<uint64_t> hash_ids;  // Mooncake: block b of 512 tokens is decided by hash_ids[b]
};

class PromptMaker {
 public:
  // How many tokens the server sees for a user's text, specials and chat template included.
  using CountTokens = std::function<Result<int>(const std::string& text)>;

  // Takes every word for one token, and no specials.
  explicit PromptMaker(uint64_t seed);
  // Keeps the words that are one token each, and learns how many tokens the server adds. Fails when
  // the tokenizer cannot be asked, or fits no word.
  static Result<PromptMaker> calibrate(uint64_t seed, const CountTokens& count_tokens);

  // Other words for the same lengths.
  void reseed(uint64_t seed) { seed_ = seed; }
  // ASCII letters and spaces only, safe inside a JSON string.
  std::string make(const PromptShape& shape) const;
  // Tokens that the server adds to every prompt; the shortest prompt is one word more.
  int overhead() const { return overhead_; }
  bool exact() const { return exact_; }

  static constexpr int kHashBlockTokens = 512;

 private:
  std::string letters(const PromptShape& shape) const;
  uint64_t key_of(const PromptShape& shape, int position) const;

  uint64_t seed_;
  std::vector<std::string_view> words_;
  int overhead_ = 0;
  bool exact_ = false;
  bool characters_ = false;  // One token per character
};

}  // namespace tandem::bench

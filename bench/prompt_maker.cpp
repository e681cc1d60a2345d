#include "bench/prompt_maker.h"

#include <algorithm>
#include <array>
#include <span>

#include "common/random.h"

namespace tandem::bench {
namespace {

// Frequent enough that nearly every vocabulary holds each of them whole, with a space in front.
constexpr std::array<std::string_view, 160> kWords{
    "the",   "of",     "and",     "to",     "in",    "is",      "that",   "for",     "it",
    "as",    "was",    "with",    "be",     "by",    "on",      "not",    "he",      "his",
    "but",   "at",     "are",     "this",   "have",  "from",    "or",     "had",     "an",
    "they",  "which",  "one",     "you",    "were",  "all",     "her",    "she",     "there",
    "would", "their",  "we",      "him",    "been",  "has",     "when",   "who",     "will",
    "no",    "more",   "if",      "out",    "so",    "up",      "said",   "what",    "its",
    "about", "than",   "into",    "them",   "can",   "only",    "other",  "time",    "new",
    "some",  "could",  "these",   "two",    "may",   "first",   "then",   "do",      "any",
    "like",  "my",     "now",     "over",   "such",  "our",     "man",    "me",      "even",
    "most",  "made",   "after",   "also",   "did",   "many",    "before", "must",    "through",
    "years", "where",  "much",    "your",   "way",   "well",    "down",   "should",  "because",
    "each",  "just",   "those",   "people", "how",   "too",     "little", "state",   "good",
    "very",  "make",   "world",   "still",  "see",   "own",     "work",   "long",    "here",
    "get",   "both",   "between", "life",   "being", "under",   "three",  "never",   "know",
    "same",  "last",   "another", "while",  "us",    "off",     "might",  "great",   "go",
    "come",  "since",  "against", "right",  "came",  "take",    "used",   "himself", "few",
    "house", "use",    "place",   "during", "high",  "without", "again",  "home",    "around",
    "small", "school", "part",    "once",   "city",  "water",   "night"};

constexpr size_t kWordsMin = 16;  // Fewer would make every prompt the same

std::string join(std::span<const std::string_view> words) {
  std::string text;
  for (std::string_view word : words) {
    if (!text.empty()) text += ' ';
    text += word;
  }
  return text;
}

// Appends to `good` the words of one token: halves a list until each half fits exactly or is one
// misfit.
Status keep_single(std::span<const std::string_view> words, int overhead,
                   const PromptMaker::CountTokens& count_tokens,
                   std::vector<std::string_view>& good) {
  // Every list starts with a known word, so that the words under test all have a space in front.
  std::vector<std::string_view> probe{kWords[0]};
  probe.insert(probe.end(), words.begin(), words.end());
  auto count = count_tokens(join(probe));
  if (!count.ok()) return count.status();
  if (*count - overhead == static_cast<int>(probe.size())) {
    good.insert(good.end(), words.begin(), words.end());
    return {};
  }
  if (words.size() == 1) return {};
  const size_t half = words.size() / 2;
  TANDEM_RETURN_IF_ERROR(keep_single(words.first(half), overhead, count_tokens, good));
  return keep_single(words.subspan(half), overhead, count_tokens, good);
}

}  // namespace

PromptMaker::PromptMaker(uint64_t seed) : seed_(seed), words_(kWords.begin(), kWords.end()) {}

Result<PromptMaker> PromptMaker::calibrate(uint64_t seed, const CountTokens& count_tokens) {
  PromptMaker maker(seed);
  auto one = count_tokens(std::string(kWords[0]));
  if (!one.ok()) return one.status();
  auto two = count_tokens(join(std::array{kWords[0], kWords[1]}));
  if (!two.ok()) return two.status();
  // A second word that costs one token for each of its characters and the space.
  maker.characters_ = *two - *one == static_cast<int>(kWords[1].size()) + 1;
  const auto first_size = static_cast<int>(kWords[0].size());
  maker.overhead_ = *one - (maker.characters_ ? first_size : 1);
  if (!maker.characters_) {
    maker.words_.clear();
    TANDEM_RETURN_IF_ERROR(keep_single(kWords, maker.overhead_, count_tokens, maker.words_));
    if (maker.words_.size() < kWordsMin) {
      return Status(ErrorCode::kFailedPrecondition,
                    "the server's tokenizer turns hardly any common word into one token");
    }
  }
  // Words that fit in one order may merge in another: the proof is a prompt as it will be sent.
  maker.exact_ = true;
  for (int tokens : {64, 257, 700}) {
    const PromptShape shape{tokens, 0, static_cast<uint64_t>(tokens), {}};
    auto count = count_tokens(maker.make(shape));
    if (!count.ok()) return count.status();
    maker.exact_ = maker.exact_ && *count == tokens;
  }
  return maker;
}

// The stream that decides this position: what is shared must not depend on the request.
uint64_t PromptMaker::key_of(const PromptShape& shape, int position) const {
  const auto block = static_cast<size_t>(position / kHashBlockTokens);
  if (position < shape.shared_prefix) return counter_random(seed_, 1);
  if (block < shape.hash_ids.size())
    return counter_random(counter_random(seed_, 3), shape.hash_ids[block]);
  return counter_random(counter_random(seed_, 2), shape.unique);
}

std::string PromptMaker::make(const PromptShape& shape) const {
  if (characters_) return letters(shape);
  std::string text;
  text.reserve(static_cast<size_t>(std::max(shape.tokens, 1)) * 6);
  const int last = std::max(shape.tokens, 1);
  for (int position = std::clamp(overhead_, 0, last - 1); position < last; ++position) {
    const uint64_t draw = counter_random(key_of(shape, position), static_cast<uint64_t>(position));
    if (!text.empty()) text += ' ';
    text += words_[draw % words_.size()];
  }
  return text;
}

// Words of five letters; the last character is never a space.
std::string PromptMaker::letters(const PromptShape& shape) const {
  std::string text;
  const int last = std::max(shape.tokens, 1);
  for (int position = std::clamp(overhead_, 0, last - 1); position < last; ++position) {
    const uint64_t draw = counter_random(key_of(shape, position), static_cast<uint64_t>(position));
    const bool space = position % 6 == 5 && position + 1 < last && !text.empty();
    text += space ? ' ' : static_cast<char>('a' + draw % 26);
  }
  return text;
}

}  // namespace tandem::bench

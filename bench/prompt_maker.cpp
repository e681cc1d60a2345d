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
  maker.overhead_ = *one - 1;
  maker.words_.clear();
  TANDEM_RETURN_IF_ERROR(keep_single(kWords, maker.overhead_, count_tokens, maker.words_));
  if (maker.words_.size() < 16) {
    return Status(ErrorCode::kFailedPrecondition,
                  "the server's tokenizer turns hardly any common word into one token");
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

std::string PromptMaker::make(const PromptShape& shape) const {
  // Streams of the counter-based generator: what is shared must not depend on the request.
  const uint64_t shared_key = counter_random(seed_, 1);
  const uint64_t unique_key = counter_random(counter_random(seed_, 2), shape.unique);
  const uint64_t block_key = counter_random(seed_, 3);
  std::string text;
  text.reserve(static_cast<size_t>(std::max(shape.tokens, 1)) * 6);
  const int first = std::min(overhead_, shape.tokens - 1);  // At least one word
  for (int position = std::max(first, 0); position < std::max(shape.tokens, 1); ++position) {
    const size_t block = static_cast<size_t>(position / kHashBlockTokens);
    uint64_t key = unique_key;
    if (position < shape.shared_prefix)
      key = shared_key;
    else if (block < shape.hash_ids.size())
      key = counter_random(block_key, shape.hash_ids[block]);
    const uint64_t draw = counter_random(key, static_cast<uint64_t>(position));
    if (!text.empty()) text += ' ';
    text += words_[draw % words_.size()];
  }
  return text;
}

}  // namespace tandem::bench

// Prompts have exactly the tokens that were asked for, and share exactly what they should.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/prompt_maker.h"
#include "bench/request_body.h"

namespace tandem::bench {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// A tokenizer with `specials` tokens in front, for which words of seven letters or more are two
// tokens.
PromptMaker::CountTokens tokenizer(int specials) {
  return [specials](const std::string& text) -> Result<int> {
    int count = specials;
    for (const std::string& word : words_of(text)) count += word.size() >= 7 ? 2 : 1;
    return count;
  };
}

size_t common_prefix(const std::string& a, const std::string& b) {
  const auto left = words_of(a), right = words_of(b);
  const auto end = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  return static_cast<size_t>(end.first - left.begin());
}

TEST_CASE("calibrated prompts have exactly the length that was asked for") {
  for (int specials : {0, 1, 9}) {
    const auto maker = PromptMaker::calibrate(5, tokenizer(specials));
    REQUIRE(maker.ok());
    CHECK(maker->exact());
    CHECK(maker->overhead() == specials);
    for (int tokens : {specials + 1, specials + 2, 100, 511, 513, 3000})
      CHECK(*tokenizer(specials)(maker->make({tokens, 0, 1, {}})) == tokens);
  }
}

TEST_CASE("a prompt is never empty") {
  const auto maker = PromptMaker::calibrate(5, tokenizer(9));
  REQUIRE(maker.ok());
  CHECK(words_of(maker->make({1, 0, 1, {}})).size() == 1);
}

TEST_CASE("a tokenizer that joins words is noticed") {
  const auto maker = PromptMaker::calibrate(5, [](const std::string& text) -> Result<int> {
    const auto words = words_of(text);
    // Fits the probes, which have at most 161 words, and not longer prompts.
    return static_cast<int>(words.size() > 200 ? words.size() - 1 : words.size());
  });
  REQUIRE(maker.ok());
  CHECK_FALSE(maker->exact());
}

TEST_CASE("a tokenizer of characters gets exactly as many characters") {
  const auto count = [](const std::string& text) -> Result<int> {
    return static_cast<int>(text.size()) + 1;
  };
  const auto maker = PromptMaker::calibrate(5, count);
  REQUIRE(maker.ok());
  CHECK(maker->exact());
  CHECK(maker->overhead() == 1);
  for (int tokens : {2, 3, 7, 8, 131072}) CHECK(*count(maker->make({tokens, 0, 1, {}})) == tokens);
  const std::string a = maker->make({100, 60, 1, {}}), b = maker->make({100, 60, 2, {}});
  CHECK(a.substr(0, 59) == b.substr(0, 59));
  CHECK(a != b);
}

TEST_CASE("a tokenizer that fits nothing, or cannot be asked, is a failure") {
  CHECK_FALSE(PromptMaker::calibrate(5, [](const std::string& text) -> Result<int> {
                return static_cast<int>(text.size() / 2);
              }).ok());
  CHECK_FALSE(PromptMaker::calibrate(5, [](const std::string&) -> Result<int> {
                return Status(ErrorCode::kUnavailable, "no");
              }).ok());
}

TEST_CASE("prompts share the shared prefix and no more") {
  const PromptMaker maker(1);
  const std::string a = maker.make({400, 120, 1, {}}), b = maker.make({300, 120, 2, {}});
  CHECK(common_prefix(a, b) >= 120);
  CHECK(common_prefix(a, b) < 125);
  CHECK(common_prefix(maker.make({50, 0, 1, {}}), maker.make({50, 0, 2, {}})) < 5);
  CHECK(maker.make({400, 120, 1, {}}) == a);
  CHECK(PromptMaker(2).make({400, 120, 1, {}}) != a);
}

TEST_CASE("blocks with equal ids have equal words") {
  const PromptMaker maker(1);
  const std::string a = maker.make({1500, 0, 1, {0, 7, 8}}),
                    b = maker.make({1400, 0, 2, {0, 7, 9}});
  CHECK(common_prefix(a, b) >= 1024);
  CHECK(common_prefix(a, b) < 1030);
}

TEST_CASE("the body carries model, prompt, length and the user's own fields") {
  Options options;
  options.extra_body = R"({"temperature":0.7,"min_p":0.1})";
  const auto text = nlohmann::json::parse(RequestBody(options, "m\"x").make("a b", 7));
  CHECK(text["model"] == "m\"x");
  CHECK(text["prompt"] == "a b");
  CHECK(text["max_tokens"] == 7);
  CHECK(text["temperature"] == 0.7);
  CHECK(text["min_p"] == 0.1);
  CHECK(text["ignore_eos"] == true);
  CHECK(text["stream_options"]["include_usage"] == true);
  options.endpoint = Endpoint::kChat;
  options.extra_body = R"({"max_completion_tokens":3})";
  const RequestBody chat(options, "m");
  const auto json = nlohmann::json::parse(chat.make("a b", 7));
  CHECK(json["messages"][0]["content"] == "a b");
  CHECK_FALSE(json.contains("max_tokens"));
  CHECK(chat.path() == "/v1/chat/completions");
}

}  // namespace
}  // namespace tandem::bench

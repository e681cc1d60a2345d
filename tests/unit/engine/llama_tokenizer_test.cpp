// The GGUF tokenizers of both test models: round trips, spaces, special tokens, long texts. Skipped
// without the models.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "common/clock.h"
#include "engine/tokenizer.h"

namespace tandem {
namespace {

constexpr const char* kSmol = "models/smollm2-135m-instruct-q4_0.gguf";
constexpr const char* kGemma = "models/gemma-3-270m-q4_k_m.gguf";

const Tokenizer& tokenizer(const std::string& path) {
  static std::map<std::string, std::unique_ptr<Tokenizer>> loaded;
  if (!std::filesystem::exists(path)) {
    std::cout << "skipped: " << path << " is not there, run scripts/setup.sh\n";
    std::exit(77);
  }
  auto& slot = loaded[path];
  if (slot == nullptr) {
    Config config;
    config.model.path = path;
    Result<std::unique_ptr<Tokenizer>> made = make_tokenizer(config);
    REQUIRE_MESSAGE(made.ok(), made.status().to_string());
    slot = *std::move(made);
  }
  return *slot;
}

std::string joined_pieces(const Tokenizer& from, const std::vector<TokenId>& tokens) {
  std::string text;
  for (const TokenId token : tokens) text += from.piece(token, true);
  return text;
}

TEST_CASE("texts survive the way to tokens and back") {
  for (const char* path : {kSmol, kGemma}) {
    const Tokenizer& subject = tokenizer(path);
    for (const std::string text :
         {"Hello, world", " leading space", "  two", "caf\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87",
          "\xf0\x9f\x98\x80\xf0\x9f\x91\x8d", "tab\tnew\nline\r\n", "1234567890", ""}) {
      const auto tokens = *subject.encode(text, false, false);
      CHECK(subject.decode(tokens, false) == text);
      CHECK(joined_pieces(subject, tokens) == text);
    }
  }
}

TEST_CASE("special tokens are parsed and rendered only where that is wanted") {
  const Tokenizer& smol = tokenizer(kSmol);
  CHECK(smol.encode("<|im_end|>", false, true)->size() == 1);
  CHECK(smol.encode("<|im_end|>", false, false)->size() > 1);
  const TokenId end = smol.encode("<|im_end|>", false, true)->front();
  CHECK(smol.is_end(end));
  CHECK(smol.piece(end, false).empty());
  CHECK(smol.piece(end, true) == "<|im_end|>");
  CHECK(smol.end_text() == "<|im_end|>");
  CHECK(smol.chat_template().find("<|im_start|>") != std::string::npos);
  CHECK(smol.context() == 8192);

  const Tokenizer& gemma = tokenizer(kGemma);
  CHECK(gemma.begin_text() == "<bos>");
  CHECK(gemma.encode("a", true, false)->size() == gemma.encode("a", false, false)->size() + 1);
  CHECK(gemma.chat_template().empty());
  CHECK(gemma.context() == 32768);
  CHECK(gemma.digest() != smol.digest());
}

TEST_CASE("text that is not UTF-8 is refused") {
  CHECK(tokenizer(kSmol).encode("a\xff", true, true).status().code() ==
        ErrorCode::kInvalidArgument);
}

TEST_CASE("no piece is longer than token_bytes_max") {
  const Tokenizer& subject = tokenizer(kSmol);
  size_t longest = 0;
  for (TokenId token = 0; token < subject.vocab(); ++token) {
    longest = std::max(longest, subject.piece(token, true).size());
  }
  CHECK(longest == subject.token_bytes_max());
}

TEST_CASE("128 KB of anything is tokenised in seconds at most") {
  std::string prose;
  while (prose.size() < 131072)
    prose += "The quick brown fox, 1234 times; caf\xc3\xa9 and \xe4\xb8\xad\xe6\x96\x87. ";
  for (const char* path : {kSmol, kGemma}) {
    for (const std::string& text : {prose, std::string(131072, 'a'), std::string(131072, ' '),
                                    std::string(131072, '\n'), std::string(131072, '.')}) {
      const TimePoint begin = SystemClock::get().now();
      const auto tokens = tokenizer(path).encode(text, true, true);
      REQUIRE(tokens.ok());
      CHECK(to_seconds(SystemClock::get().now() - begin) < 10);
      CHECK(tokenizer(path).decode(*tokens, false) == text);
    }
  }
}

}  // namespace
}  // namespace tandem

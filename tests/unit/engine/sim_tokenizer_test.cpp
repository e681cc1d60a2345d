// The sim vocabulary: bytes in, words out, special tokens only where they are wanted.
#include "engine/sim/sim_tokenizer.h"

#include <doctest/doctest.h>

#include <set>

namespace tandem {
namespace {

std::unique_ptr<Tokenizer> start() {
  Config config;
  config.model.engine = "sim";
  Result<std::unique_ptr<Tokenizer>> tokenizer = make_tokenizer(config);
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

TEST_CASE("text survives the way to tokens and back") {
  auto tokenizer = start();
  const std::string text = "Hello <|stop|> \xc3\xa9\xf0\x9f\x98\x80";
  const auto plain = *tokenizer->encode(text, false, false);
  CHECK(plain.size() == text.size());
  CHECK(tokenizer->decode(plain, false) == text);
  const auto special = *tokenizer->encode(text, true, true);
  CHECK(special.front() == kSimBegin);
  CHECK(special.size() == text.size() - 8 + 2);
  CHECK(tokenizer->decode(special, true) == "<|begin|>" + text);
  CHECK(tokenizer->decode(special, false) == "Hello  \xc3\xa9\xf0\x9f\x98\x80");
}

TEST_CASE("text that is not UTF-8 is refused") {
  CHECK(start()->encode("\xff", false, false).status().code() == ErrorCode::kInvalidArgument);
}

TEST_CASE("words are distinct, short and cover the vocabulary") {
  auto tokenizer = start();
  std::set<std::string> words;
  for (TokenId token = kSimFirstWord; token < tokenizer->vocab(); ++token) {
    const std::string piece = tokenizer->piece(token, false);
    CHECK(piece.size() <= tokenizer->token_bytes_max());
    words.insert(piece);
  }
  CHECK(words.size() == static_cast<size_t>(tokenizer->vocab() - kSimFirstWord));
}

TEST_CASE("the end tokens end, and the template names special tokens") {
  auto tokenizer = start();
  CHECK(tokenizer->is_end(kSimEnd));
  CHECK(tokenizer->is_end(kSimTurnEnd));
  CHECK_FALSE(tokenizer->is_end('a'));
  CHECK(tokenizer->begin_text() == "<|begin|>");
  CHECK(tokenizer->chat_template().find("<|start|>") != std::string::npos);
}

}  // namespace
}  // namespace tandem

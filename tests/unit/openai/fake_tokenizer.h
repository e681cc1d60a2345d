// A vocabulary written by hand: ids 0 to 255 are single bytes, then come the given pieces, then one
// special token, the end of text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer.h"

namespace tandem::openai {

class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> pieces = {}) : pieces_(std::move(pieces)) {}

  TokenId id(size_t piece) const { return static_cast<TokenId>(256 + piece); }
  TokenId end_id() const { return static_cast<TokenId>(256 + pieces_.size()); }

  Result<std::vector<TokenId>> encode(std::string_view text, bool, bool) const override {
    std::vector<TokenId> ids;
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
  }
  std::string piece(TokenId token, bool special) const override {
    if (token < 256) return std::string(1, static_cast<char>(token));
    if (token == end_id()) return special ? end_text_ : "";
    return pieces_[static_cast<size_t>(token) - 256];
  }
  std::string decode(const std::vector<TokenId>& tokens, bool special) const override {
    std::string text;
    for (const TokenId token : tokens) text += piece(token, special);
    return text;
  }
  int vocab() const override { return end_id() + 1; }
  int context() const override { return 4096; }
  bool is_end(TokenId token) const override { return token == end_id(); }
  const std::string& chat_template() const override { return empty_; }
  const std::string& begin_text() const override { return empty_; }
  const std::string& end_text() const override { return end_text_; }
  size_t token_bytes_max() const override { return 16; }
  const std::string& digest() const override { return empty_; }

 private:
  std::vector<std::string> pieces_;
  std::string empty_;
  std::string end_text_ = "<|end|>";
};

}  // namespace tandem::openai

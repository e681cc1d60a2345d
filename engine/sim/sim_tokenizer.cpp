#include "engine/sim/sim_tokenizer.h"

#include <array>
#include <string_view>

#include "engine/digest.h"
#include "engine/utf8.h"

namespace tandem {

namespace {

constexpr std::array<std::string_view, 4> kSpecialText = {"<|begin|>", "<|end|>", "<|start|>",
                                                          "<|stop|>"};
constexpr std::string_view kConsonants = "bdfghjklmnprstv";
constexpr std::string_view kVowels = "aeiou";

// A space and syllables: the word's number in base 75, two syllables at least.
std::string word_text(int number) {
  constexpr int kSyllables = static_cast<int>(kConsonants.size() * kVowels.size());
  std::string text = " ";
  for (int i = 0; i < 2 || number > 0; ++i) {
    const auto syllable = static_cast<size_t>(number % kSyllables);
    text += kConsonants[syllable / kVowels.size()];
    text += kVowels[syllable % kVowels.size()];
    number /= kSyllables;
  }
  return text;
}

class SimTokenizer final : public Tokenizer {
 public:
  explicit SimTokenizer(const Config& config)
      : vocab_(sim_vocab(config.sim)),
        context_(config.model.context),
        digest_(sim_tokenizer_digest(config.sim)) {}

  Result<std::vector<TokenId>> encode(std::string_view text, bool add_special,
                                      bool parse_special) const override {
    if (!valid_utf8(text))
      return Status(ErrorCode::kInvalidArgument, "the text is not valid UTF-8");
    std::vector<TokenId> tokens;
    tokens.reserve(text.size() + 1);
    if (add_special) tokens.push_back(kSimBegin);
    while (!text.empty()) {
      const TokenId special = parse_special ? special_at(text) : -1;
      if (special >= 0) {
        tokens.push_back(special);
        text.remove_prefix(special_text(special).size());
      } else {
        tokens.push_back(static_cast<unsigned char>(text.front()));
        text.remove_prefix(1);
      }
    }
    return tokens;
  }

  std::string piece(TokenId token, bool special) const override {
    TANDEM_CHECK(token >= 0 && token < vocab_, "token out of range");
    if (token < kSimBegin) return std::string(1, static_cast<char>(token));
    if (token < kSimFirstWord) return special ? std::string(special_text(token)) : std::string();
    return word_text(token - kSimFirstWord);
  }

  std::string decode(const std::vector<TokenId>& tokens, bool special) const override {
    std::string text;
    for (const TokenId token : tokens) text += piece(token, special);
    return text;
  }

  int vocab() const override { return vocab_; }
  int context() const override { return context_; }
  bool is_end(TokenId token) const override { return sim_is_end(token); }
  const std::string& chat_template() const override { return template_; }
  const std::string& begin_text() const override { return begin_text_; }
  const std::string& end_text() const override { return end_text_; }
  size_t token_bytes_max() const override { return 16; }
  const std::string& digest() const override { return digest_; }

 private:
  static std::string_view special_text(TokenId token) {
    return kSpecialText[static_cast<size_t>(token - kSimBegin)];
  }
  static TokenId special_at(std::string_view text) {
    if (text.front() != '<') return -1;
    for (TokenId token = kSimBegin; token < kSimFirstWord; ++token) {
      if (text.starts_with(special_text(token))) return token;
    }
    return -1;
  }

  const int vocab_;
  const int context_;
  const std::string digest_;
  const std::string begin_text_{kSpecialText[0]};
  const std::string end_text_{kSpecialText[1]};
  const std::string template_ =
      "{{ bos_token }}{% for message in messages %}<|start|>{{ message['role'] }}\n"
      "{{ message['content'] }}<|stop|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}";
};

}  // namespace

std::string sim_tokenizer_digest(const SimConfig& config) {
  Digest digest("sim_tokenizer");
  digest.add(static_cast<uint64_t>(sim_vocab(config)));
  for (const std::string_view text : kSpecialText) digest.add(text);
  return digest.hex();
}

Result<std::unique_ptr<Tokenizer>> make_sim_tokenizer(const Config& config) {
  return std::unique_ptr<Tokenizer>(std::make_unique<SimTokenizer>(config));
}

}  // namespace tandem

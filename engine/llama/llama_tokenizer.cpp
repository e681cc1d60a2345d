#include "engine/llama/llama_tokenizer.h"

#include <llama.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <string>

#include "engine/llama/gguf_file.h"
#include "engine/llama/handles.h"
#include "engine/llama/llama_runtime.h"
#include "engine/llama/vocab.h"
#include "engine/utf8.h"

namespace tandem {

namespace {

// All pieces in one buffer: the router asks for one per token that it streams.
struct Pieces {
  std::string bytes;
  std::vector<uint32_t> ends;  // Of each token's piece in `bytes`
  std::vector<bool> special;   // Empty unless special tokens are rendered
  size_t longest = 0;

  std::string_view at(TokenId token) const {
    const auto i = static_cast<size_t>(token);
    const uint32_t begin = i == 0 ? 0 : ends[i - 1];
    return std::string_view(bytes).substr(begin, ends[i] - begin);
  }
};

Pieces read_pieces(const llama_vocab* vocab) {
  Pieces pieces;
  std::vector<char> buffer(256);
  for (TokenId token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
    const auto render = [&](bool special) {
      return llama_token_to_piece(vocab, token, buffer.data(), static_cast<int32_t>(buffer.size()),
                                  0, special);
    };
    pieces.special.push_back(render(false) == 0);
    int32_t length = render(true);
    if (length < 0) {
      buffer.resize(static_cast<size_t>(-length));
      length = render(true);
    }
    pieces.bytes.append(buffer.data(), static_cast<size_t>(std::max(length, 0)));
    pieces.ends.push_back(static_cast<uint32_t>(pieces.bytes.size()));
    pieces.longest = std::max(pieces.longest, static_cast<size_t>(std::max(length, 0)));
  }
  return pieces;
}

// libllama does not read it when only the vocabulary is loaded, but keeps the file's metadata.
int trained_context(const llama_model* model) {
  std::array<char, 256> value{};
  if (llama_model_meta_val_str(model, "general.architecture", value.data(), value.size()) < 0)
    return 0;
  const std::string key = std::string(value.data()) + ".context_length";
  if (llama_model_meta_val_str(model, key.c_str(), value.data(), value.size()) < 0) return 0;
  int context = 0;
  std::from_chars(value.data(), value.data() + std::strlen(value.data()), context);
  return context;
}

class LlamaTokenizer final : public Tokenizer {
 public:
  explicit LlamaTokenizer(LlamaModel model)
      : model_(std::move(model)),
        vocab_(llama_model_get_vocab(model_.get())),
        pieces_(read_pieces(vocab_)),
        context_(trained_context(model_.get())),
        digest_(vocab_digest(vocab_)),
        end_tokens_(end_tokens(vocab_)) {
    if (const char* text = llama_model_chat_template(model_.get(), nullptr)) template_ = text;
    begin_text_ = text_of(llama_vocab_bos(vocab_));
    end_text_ = text_of(llama_vocab_eos(vocab_));
    // Some vocabularies put a space before a text's first word; decode() then takes it away again.
    const Result<std::vector<TokenId>> probe = encode("a", false, false);
    adds_space_ = probe.ok() && !probe->empty() && pieces_.at(probe->front()).starts_with(' ');
  }

  Result<std::vector<TokenId>> encode(std::string_view text, bool add_special,
                                      bool parse_special) const override {
    if (!valid_utf8(text))
      return Status(ErrorCode::kInvalidArgument, "the text is not valid UTF-8");
    if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max() / 2)) {
      return Status(ErrorCode::kInvalidArgument, "the text is too long");
    }
    // A token stands for one byte at least; beside them come a space and special tokens.
    std::vector<TokenId> tokens(text.size() + 8);
    const auto run = [&] {
      return llama_tokenize(vocab_, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                            static_cast<int32_t>(tokens.size()), add_special, parse_special);
    };
    int32_t count = run();
    if (count < 0 && count != std::numeric_limits<int32_t>::min()) {
      tokens.resize(static_cast<size_t>(-count));
      count = run();
    }
    if (count < 0) return Status(ErrorCode::kInternal, "the text cannot be tokenised");
    tokens.resize(static_cast<size_t>(count));
    return tokens;
  }

  std::string piece(TokenId token, bool special) const override {
    TANDEM_CHECK(token >= 0 && token < vocab(), "token out of range");
    return std::string(text(token, special));
  }

  std::string decode(const std::vector<TokenId>& tokens, bool special) const override {
    std::string decoded;
    for (const TokenId token : tokens) {
      std::string_view next = text(token, special);
      if (decoded.empty() && adds_space_ && next.starts_with(' ')) next.remove_prefix(1);
      decoded += next;
    }
    return decoded;
  }

  int vocab() const override { return static_cast<int>(pieces_.ends.size()); }
  int context() const override { return context_; }
  bool is_end(TokenId token) const override {
    return std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
  }
  const std::string& chat_template() const override { return template_; }
  const std::string& begin_text() const override { return begin_text_; }
  const std::string& end_text() const override { return end_text_; }
  size_t token_bytes_max() const override { return pieces_.longest; }
  const std::string& digest() const override { return digest_; }

 private:
  std::string_view text(TokenId token, bool special) const {
    if (!special && pieces_.special[static_cast<size_t>(token)]) return {};
    return pieces_.at(token);
  }
  std::string text_of(TokenId token) const {
    return token < 0 || token >= vocab() ? std::string() : std::string(pieces_.at(token));
  }

  const LlamaModel model_;
  const llama_vocab* const vocab_;  // The model's
  const Pieces pieces_;
  const int context_;
  const std::string digest_;
  const std::vector<TokenId> end_tokens_;
  std::string template_;
  std::string begin_text_;
  std::string end_text_;
  bool adds_space_ = false;
};

}  // namespace

Result<std::string> llama_model_digest(const std::string& path) {
  const Result<GgufFile> file = open_gguf(path);
  if (!file.ok()) return file.status();
  return gguf_digest(path, *file);
}

Result<std::unique_ptr<Tokenizer>> make_llama_tokenizer(const Config& config) {
  start_llama_runtime();
  const std::string& path = config.model.path;
  if (const Result<GgufFile> file = open_gguf(path); !file.ok()) return file.status();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  params.n_gpu_layers = 0;
  LlamaModel model(llama_model_load_from_file(path.c_str(), params));
  if (model == nullptr) {
    return Status(ErrorCode::kInvalidArgument,
                  "model file " + path + " has no vocabulary that this build can read");
  }
  return std::unique_ptr<Tokenizer>(std::make_unique<LlamaTokenizer>(std::move(model)));
}

}  // namespace tandem

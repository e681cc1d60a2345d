// Text to tokens and back. Stateless and thread-safe: the router tokenises on several threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/config.h"
#include "common/status.h"
#include "common/types.h"

namespace tandem {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // `add_special`: begin-of-text and the like, where the model wants them. `parse_special`: special
  // tokens written in the text become those tokens. Invalid UTF-8 is kInvalidArgument.
  virtual Result<std::vector<TokenId>> encode(std::string_view text, bool add_special,
                                              bool parse_special) const = 0;
  // The bytes of one token, which may be part of a code point. `special`: render special tokens
  // too, else they are empty. Requires: 0 <= token < vocab().
  virtual std::string piece(TokenId token, bool special) const = 0;
  // The text of `tokens` as one string (leading-space rules apply to the first of them only).
  virtual std::string decode(const std::vector<TokenId>& tokens, bool special) const = 0;

  virtual int vocab() const = 0;
  virtual int context() const = 0;  // The model's trained context
  virtual bool is_end(TokenId token) const = 0;
  virtual const std::string& chat_template()
      const = 0;                                      // Jinja source; empty when the model has none
  virtual const std::string& begin_text() const = 0;  // The template's bos_token
  virtual const std::string& end_text() const = 0;    // The template's eos_token
  virtual size_t token_bytes_max() const = 0;         // Longest piece, for a cheap length check
  virtual const std::string& digest() const = 0;      // Equal to the workers' tokenizer_digest
};

// Loads the vocabulary only (milliseconds, no weights).
Result<std::unique_ptr<Tokenizer>> make_tokenizer(const Config& config);
// The model_digest of workers that run the configured model file; empty with an engine that has no
// files. Reads the header and slices of the weights.
Result<std::string> configured_model_digest(const Config& config);

}  // namespace tandem

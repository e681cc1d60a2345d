// TextAssembler: turns the sampled tokens of one choice into text.
//
// Tokens become bytes, bytes become whole code points (at most 3 bytes wait for the rest of
// theirs), code points pass the stop strings (only a suffix that may still become one waits). The
// same tokens give the same text, entries and finish however they arrive. One choice, one caller at
// a time; the tokenizer must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "engine/sampling.h"
#include "engine/tokenizer.h"
#include "router/openai/request.h"
#include "router/openai/stop_matcher.h"
#include "router/openai/utf8.h"

namespace tandem::openai {

struct AssemblerOptions {
  std::vector<std::string> stop;
  bool include_stop = false;
  bool skip_special = true;
  int min_tokens = 0;
  int max_tokens = 0;  // 0: whatever the worker says
  int logprobs = -1;   // -1: no entries
  bool token_ids = false;

  static AssemblerOptions from(const CompletionRequest& request, int max_tokens);
};

struct TopEntry {
  TokenId token = 0;
  float logprob = 0;
  std::string bytes;  // Raw; special tokens as they are written
};

struct LogprobEntry {
  TokenId token = 0;
  float logprob = 0;
  std::string bytes;
  bool hidden = false;     // Not in the text: an end token, a skipped special token
  size_t text_offset = 0;  // Code points of generated text before it
  std::vector<TopEntry> top;
};

enum class Finish { kNone, kStop, kLength };
// The matched stop string, or the stop token; neither for the model's own end token.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

// What a push adds to the answer. Deltas of one choice can be appended to one another.
struct TextDelta {
  std::string text;                    // Whole code points, valid UTF-8
  std::vector<TokenId> token_ids;      // If wanted
  std::vector<LogprobEntry> logprobs;  // If wanted; those whose text is out
  Finish finish = Finish::kNone;
  StopReason stop_reason;
  bool broken_off = false;  // From flush(): nothing follows, and there is no finish

  bool finished() const { return finish != Finish::kNone; }
  bool empty() const {
    return text.empty() && token_ids.empty() && logprobs.empty() && !finished();
  }
  void append(TextDelta&& next);
};

class TextAssembler {
 public:
  TextAssembler(const Tokenizer& tokenizer, AssemblerOptions options);

  // After the end it returns an empty delta: late tokens of a worker that has not seen a cancel
  // yet.
  TextDelta push(const SampledToken& sampled);
  // Everything held back, when the answer ends without its last token (an error frame follows).
  TextDelta flush();

  bool finished() const { return finished_; }
  // A stop string ended the answer: the worker does not know and must be told.
  bool ended_by_text() const { return ended_by_text_; }
  // Tokens pushed until the end, the end token included: usage's completion_tokens.
  int token_count() const { return token_count_; }

 private:
  struct Waiting {
    size_t end = 0;  // It is out when this many bytes of text are
    LogprobEntry entry;
  };

  void note_token(const SampledToken& sampled, bool hidden, size_t offset);
  // Moves the first `bytes` of the held text, and the tokens that end there, into `delta`.
  void release(size_t bytes, TextDelta& delta);
  void release_token(TextDelta& delta);
  void end(Finish finish, TextDelta& delta);

  const Tokenizer& tokenizer_;
  const AssemblerOptions options_;
  Utf8Decoder decoder_;
  StopMatcher matcher_;
  std::string held_;             // Text decoded and not out yet
  size_t text_out_ = 0;          // Bytes of text out
  size_t code_points_ = 0;       // Decoded so far
  std::deque<Waiting> waiting_;  // Tokens whose text is not out yet; bounded by held_ and 3 bytes
  int token_count_ = 0;
  bool finished_ = false;
  bool ended_by_text_ = false;
};

}  // namespace tandem::openai

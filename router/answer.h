// Answer: everything that the choices of one request have said, and its bytes for the client.
//
// Owned by a request's flow, on its I/O thread. It keeps each choice's emitted tokens, so that
// another worker can go on where one was lost; text, stop strings and frames follow from the tokens
// alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "router/openai/render.h"
#include "router/openai/text_assembler.h"
#include "router/prepare.h"
#include "router/router_metrics.h"

namespace tandem::router {

class Answer {
 public:
  struct Parts {
    const Tokenizer& tokenizer;
    const RouterMetrics& metrics;
    const Prepared& prepared;  // Outlives the answer
    openai::ResponseMeta meta;
    uint64_t seed = 0;  // The client's, or drawn
    TimePoint received{};
  };
  explicit Answer(Parts parts);

  struct Choice {
    int prompt = 0;
    uint64_t seed = 0;
    std::vector<TokenId> emitted;
    openai::TextAssembler assembler;
    TimePoint last_token{};
    bool started = false;  // Its opening frame is written
    int tries = 0;         // Fresh attempts after a loss
  };

  int size() const { return static_cast<int>(choices_.size()); }
  Choice& choice(int index) { return choices_[static_cast<size_t>(index)]; }
  bool finished(int index) const {
    return choices_[static_cast<size_t>(index)].assembler.finished();
  }
  bool finished() const { return open_ == 0; }
  bool any_token() const { return usage_.completion_tokens > 0; }

  void took_prompt(int prompt, int cached_tokens);
  void push(int index, const SampledToken& sampled, TimePoint now);
  // Answers a prompt that asks for no tokens.
  void finish_empty(int prompt);

  const openai::Usage& usage() const { return usage_; }
  int cached_tokens(int prompt) const { return cached_[static_cast<size_t>(prompt)]; }
  bool streaming() const { return stream_.has_value(); }
  // Frames since the last call.
  std::string take_frames() { return std::exchange(frames_, {}); }
  bool has_frames() const { return !frames_.empty(); }
  // What closes a stream. Requires: finished().
  std::string last_frames();
  // What closes a stream that cannot go on: the text still held back, then the error.
  std::string error_frames(const openai::ApiError& error);
  // Requires: finished(), not streaming().
  std::string body() const { return body_->body(usage_); }

 private:
  void start(int index);
  void emit(int index, openai::TextDelta delta);

  const Parts parts_;
  std::vector<Choice> choices_;
  int open_ = 0;
  openai::Usage usage_;
  std::vector<int> cached_;  // Per prompt; -1: not known yet
  std::optional<openai::StreamRenderer> stream_;
  std::optional<openai::BodyRenderer> body_;
  std::string frames_;
};

}  // namespace tandem::router

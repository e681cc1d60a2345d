// Response bodies and stream frames of the API, as the bytes that go to the client.
//
// Pure; a StreamRenderer or BodyRenderer belongs to one request and one caller at a time.
// Everything written is valid UTF-8 and finite JSON. Choice numbers are prompt_index * n +
// choice_index.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer.h"
#include "router/openai/api_error.h"
#include "router/openai/request.h"
#include "router/openai/text_assembler.h"

namespace tandem::openai {

class JsonWriter;

struct Usage {
  int64_t prompt_tokens = 0;      // Each prompt once, not times n
  int64_t completion_tokens = 0;  // Every sampled token of every choice, end tokens included
  int64_t cached_tokens = 0;
};

// What every chunk of a response repeats.
struct ResponseMeta {
  Kind kind = Kind::kCompletion;
  std::string id;           // make_id()
  int64_t created = 0;      // Seconds since the Unix epoch
  std::string model;        // The served name that the client asked for
  std::string fingerprint;  // make_fingerprint()
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  bool tokens_as_token_ids = false;
  int logprobs = -1;
  int stream_interval = 1;

  static ResponseMeta from(const CompletionRequest& request, std::string id, int64_t created,
                           std::string model, std::string fingerprint);
};

// "chatcmpl-" or "cmpl-" and 24 random characters.
std::string make_id(Kind kind);
// "fp_" and 10 hex digits: a stable hash of what decides the numbers.
std::string make_fingerprint(std::string_view build, std::string_view model_digest,
                             std::string_view layout_digest);

// What a choice begins with.
struct ChoiceStart {
  std::string_view echo;                      // The prompt's text with echo, else empty
  std::span<const TokenId> prompt_token_ids;  // Written if the client wants them
};

class StreamRenderer {
 public:
  StreamRenderer(ResponseMeta meta, int choices);

  // Frames that open a choice: the role chunk of a chat, the echo of a completion. Once per choice,
  // before its deltas.
  std::string start(int index, const ChoiceStart& start, const Usage& so_far);
  // Zero or more frames ("data: {...}\n\n"). `so_far` is written with continuous_usage.
  std::string delta(int index, TextDelta delta, const Usage& so_far);
  // The usage chunk if wanted, and [DONE].
  std::string finish(const Usage& usage) const;
  // An error after the header: its frame, and [DONE].
  static std::string error(const ApiError& error);
  static std::string_view keep_alive() { return ": keep-alive\n"; }

 private:
  struct Choice {
    TextDelta waiting;  // Less than stream_interval tokens of it
    int tokens_waiting = 0;
    bool first_sent = false;
    size_t offset_base = 0;  // Code points of the echo
    std::vector<TokenId> prompt_ids;
  };

  void chat_chunk(int index, const TextDelta& delta, bool last, const Usage& so_far,
                  std::string& out) const;
  void completion_chunk(int index, const TextDelta& delta, const Usage& so_far, std::string& out);
  void write_tail(const Usage& so_far, JsonWriter& json) const;

  ResponseMeta meta_;
  std::vector<Choice> choices_;
  bool prompt_ids_sent_ = false;
};

class BodyRenderer {
 public:
  BodyRenderer(ResponseMeta meta, int choices);

  void start(int index, const ChoiceStart& start);
  void delta(int index, TextDelta delta);
  // Requires: every choice has finished.
  std::string body(const Usage& usage) const;

 private:
  struct Choice {
    TextDelta all;
    std::string echo;
    std::vector<TokenId> prompt_ids;
  };

  void write_choice(int index, JsonWriter& json) const;

  ResponseMeta meta_;
  std::vector<Choice> choices_;
};

struct ModelCard {
  std::string id;
  int64_t created = 0;
  int context = 0;
};
std::string models_body(std::span<const ModelCard> models);
std::string model_body(const ModelCard& model);

// Union of vLLM's and llama.cpp's answers.
std::string tokenize_body(const TokenizeRequest& request, std::span<const TokenId> tokens,
                          const Tokenizer& tokenizer, int context);
std::string detokenize_body(std::string_view text);
std::string health_body();
std::string version_body(std::string_view version);

}  // namespace tandem::openai

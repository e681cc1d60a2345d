// Request bodies of /v1/completions, /v1/chat/completions, /tokenize and /detokenize: parsed and
// checked once, before any worker is touched and before a response header is written.
//
// Pure functions over plain values; any thread. A parse costs about a microsecond per kilobyte plus
// a copy of the texts. null is the same as absent. Unknown fields are ignored and listed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/config.h"
#include "common/types.h"
#include "engine/sampling.h"
#include "engine/tokenizer.h"
#include "router/openai/api_error.h"

namespace tandem::openai {

enum class Kind { kCompletion, kChat };

struct Limits {
  int n_max = 16;
  int prompts_max = 1024;
  int logprobs_max = 20;
  int stop_max = 16;
  int stop_bytes_max = 1024;
  int stop_token_ids_max = 1024;
  int logit_bias_max = 4096;
  int tools_max = 128;
  int messages_max = 16384;
  int depth_max = 128;  // Nesting of the JSON
  bool strict = false;  // Unknown fields are errors

  static Limits from(const RouterConfig& config);
};

using TokenLists = std::vector<std::vector<TokenId>>;
using Texts = std::vector<std::string>;

struct CompletionRequest {
  Kind kind = Kind::kCompletion;
  std::string model;  // Empty: not given; see resolve_model()

  // kCompletion: one or more prompts. Empty for kChat, whose prompt comes from
  // build_template_context().
  std::variant<Texts, TokenLists> prompts;
  int prompt_count() const;

  // kChat, as JSON text for the template; keys keep the client's order.
  std::string messages;              // An array; contents are strings or null
  std::string tools;                 // An array, or empty
  std::string chat_template_kwargs;  // An object, or empty
  size_t opening_bytes = 0;          // Of `messages`: through the first of a user
  std::string final_content;         // Text of the last message, for continue_final_message
  bool add_generation_prompt = true;
  bool continue_final_message = false;

  SamplingParams sampling;      // seed unused: see `seed`. logprobs: what workers shall report
  std::optional<int64_t> seed;  // Absent: the router draws one
  int n = 1;
  std::optional<int> max_tokens;  // Absent: what the context leaves (chat); completions: 16
  bool max_tokens_given = false;  // By the client, not by default

  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool echo = false;  // kCompletion only, without logprobs

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  int stream_interval = 1;

  // Logprobs in the answer, and how many alternatives each entry lists (-1: none wanted).
  int logprobs = -1;
  bool tokens_as_token_ids = false;
  bool return_token_ids = false;

  bool add_special_tokens = true;             // Default false for kChat
  std::optional<int> truncate_prompt_tokens;  // Keep this many; -1: as many as the context holds
  bool truncate_right = false;                // Cut the end instead of the beginning

  std::string user;        // `user` or `safety_identifier`
  std::string request_id;  // `request_id` of the body
  std::string cache_salt;
  std::string prompt_cache_key;
  int64_t priority = 0;  // Lower first

  std::vector<std::string> ignored_fields;  // Names only, at most 16, for a debug line
  int ignored_count = 0;
};

// `content_type` is checked elsewhere: see check_content_type().
Parsed<CompletionRequest> parse_completion(std::string_view body, Kind kind, const Limits& limits);

// nullopt when `value` names application/json (parameters allowed).
std::optional<ApiError> check_content_type(std::string_view value);

// The served name that an answer echoes. Empty `requested` means the only model, if there is only
// one.
Parsed<std::string> resolve_model(std::string_view requested, std::span<const std::string> served);

struct ModelLimits {
  int vocab = 0;
  int context = 0;  // max_model_len: prompt plus output
  size_t token_bytes_max = 0;
};
ModelLimits model_limits(const Tokenizer& tokenizer, int context);

// What needs the model: token ids within the vocabulary, texts that cannot fit. Before tokenising.
std::optional<ApiError> validate_against_model(const CompletionRequest& request,
                                               const ModelLimits& model);

// A text of this many bytes may fit: for what a template rendered. Before tokenising.
std::optional<ApiError> check_text_fits(const CompletionRequest& request, const ModelLimits& model,
                                        size_t bytes);

// Applies truncate_prompt_tokens. Before resolve_max_tokens().
void truncate_prompt(const CompletionRequest& request, const ModelLimits& model,
                     std::vector<TokenId>& prompt);
// Output tokens that a prompt of this length may have (0: echo only), or context_length_exceeded.
Parsed<int> resolve_max_tokens(const CompletionRequest& request, const ModelLimits& model,
                               int64_t prompt_tokens);

// The context that a chat template renders with, as a JSON object.
std::string build_template_context(const CompletionRequest& request, std::string_view begin_text,
                                   std::string_view end_text);
// The prompt text made of what the template rendered: cut after the last message's text for
// continue_final_message.
Parsed<std::string> finish_prompt_text(const CompletionRequest& request, std::string rendered);

struct TokenizeRequest {
  std::string model;
  std::string text;                       // When there are no messages
  std::optional<CompletionRequest> chat;  // {messages}: only its template fields are set
  bool add_special = false;  // Default true in the `prompt` form, false in `content` and `messages`
  bool parse_special = true;
  bool with_strings = false;  // return_token_strs: adds `token_strs`
  bool with_pieces = false;   // `tokens` becomes [{id, piece}]
};
Parsed<TokenizeRequest> parse_tokenize(std::string_view body, const Limits& limits);

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};
// Token ids are checked against `vocab`.
Parsed<DetokenizeRequest> parse_detokenize(std::string_view body, const Limits& limits, int vocab);

}  // namespace tandem::openai

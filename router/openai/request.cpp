// What becomes of a parsed request once the model is known.
#include "router/openai/request.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "router/openai/json_writer.h"

namespace tandem::openai {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::optional<ApiError> check_ids(std::span<const TokenId> ids, int vocab, std::string_view param) {
  for (const TokenId id : ids) {
    if (id < 0 || id >= vocab)
      return invalid_value(param, "token ids must be within the model's vocabulary.");
  }
  return std::nullopt;
}

// What a truncated prompt keeps room for.
int output_reserve(const CompletionRequest& request) {
  return request.max_tokens_given ? *request.max_tokens : 1;
}

}  // namespace

std::optional<ApiError> check_content_type(std::string_view value) {
  std::string type(trimmed(value.substr(0, value.find(';'))));
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (type == "application/json") return std::nullopt;
  return unsupported_media_type(type.substr(0, 128));
}

Parsed<std::string> resolve_model(std::string_view requested, std::span<const std::string> served) {
  if (requested.empty()) {
    if (served.size() == 1) return served.front();
    return missing_parameter("model");
  }
  const auto found = std::find(served.begin(), served.end(), requested);
  if (found != served.end()) return *found;
  return model_not_found(requested.substr(0, 256));
}

ModelLimits model_limits(const Tokenizer& tokenizer, int context) {
  return {tokenizer.vocab(), context, tokenizer.token_bytes_max()};
}

std::optional<ApiError> check_text_fits(const CompletionRequest& request, const ModelLimits& model,
                                        size_t bytes) {
  if (request.truncate_prompt_tokens || model.token_bytes_max == 0) return std::nullopt;
  const size_t tokens_min = bytes / model.token_bytes_max;
  if (tokens_min <= static_cast<size_t>(model.context)) return std::nullopt;
  const bool chat = request.kind == Kind::kChat;
  ApiError error =
      context_length_exceeded(model.context, static_cast<int64_t>(tokens_min), std::nullopt, chat);
  const std::string_view exact = "resulted in ";
  error.message.insert(error.message.find(exact) + exact.size(), "at least ");
  return error;
}

std::optional<ApiError> validate_against_model(const CompletionRequest& request,
                                               const ModelLimits& model) {
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    if (id >= model.vocab)
      return invalid_value("logit_bias", "keys must be token ids of the model's vocabulary.");
  }
  if (auto error = check_ids(request.sampling.stop_tokens, model.vocab, "stop_token_ids"))
    return error;
  if (request.truncate_prompt_tokens.value_or(-1) > model.context) {
    return invalid_request("truncate_prompt_tokens", "integer_above_max_value",
                           "Invalid 'truncate_prompt_tokens': integer above maximum value. "
                           "Expected a value <= " +
                               std::to_string(model.context) + ", but got " +
                               std::to_string(*request.truncate_prompt_tokens) + " instead.");
  }
  if (const auto* lists = std::get_if<TokenLists>(&request.prompts)) {
    for (const std::vector<TokenId>& list : *lists) {
      if (auto error = check_ids(list, model.vocab, "prompt")) return error;
    }
  } else {
    for (const std::string& text : std::get<Texts>(request.prompts)) {
      if (auto error = check_text_fits(request, model, text.size())) return error;
    }
  }
  return std::nullopt;
}

void truncate_prompt(const CompletionRequest& request, const ModelLimits& model,
                     std::vector<TokenId>& prompt) {
  if (!request.truncate_prompt_tokens) return;
  int keep = *request.truncate_prompt_tokens;
  if (keep < 0) keep = std::max(1, model.context - output_reserve(request));
  const size_t limit = static_cast<size_t>(keep);
  if (prompt.size() <= limit) return;
  if (request.truncate_right) {
    prompt.resize(limit);
  } else {
    prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(limit));
  }
}

Parsed<int> resolve_max_tokens(const CompletionRequest& request, const ModelLimits& model,
                               int64_t prompt_tokens) {
  const bool chat = request.kind == Kind::kChat;
  if (prompt_tokens == 0) return invalid_value(chat ? "messages" : "prompt", "it has no tokens.");
  std::optional<int64_t> wanted;
  if (request.max_tokens_given) wanted = *request.max_tokens;
  const bool full = prompt_tokens >= model.context && wanted != 0;
  if (full || prompt_tokens + wanted.value_or(0) > model.context)
    return context_length_exceeded(model.context, prompt_tokens, wanted, chat);
  const int left = model.context - static_cast<int>(prompt_tokens);
  return std::min(left, request.max_tokens.value_or(left));
}

std::string build_template_context(const CompletionRequest& request, std::string_view begin_text,
                                   std::string_view end_text) {
  std::string out = "{";
  // Of equal keys the last counts: a client's own arguments come first and replace none of ours.
  if (request.chat_template_kwargs.size() > 2) {
    out.append(request.chat_template_kwargs, 1, request.chat_template_kwargs.size() - 2);
    out += ',';
  }
  JsonWriter json(out);
  json.key("messages").raw(request.messages);
  json.key("tools").raw(request.tools.empty() ? "null" : request.tools);
  json.key("documents").null();
  json.key("add_generation_prompt").boolean(request.add_generation_prompt);
  json.key("bos_token").string(begin_text).key("eos_token").string(end_text);
  out += '}';
  return out;
}

Parsed<std::string> finish_prompt_text(const CompletionRequest& request, std::string rendered) {
  if (!request.continue_final_message) return rendered;
  // Templates may trim a message: look for its core, and keep the spaces behind it if they are
  // there.
  const std::string_view core = trimmed(request.final_content);
  const size_t start = core.empty() ? rendered.npos : rendered.rfind(core);
  if (start == rendered.npos) {
    return invalid_value("continue_final_message",
                         "the chat template does not show the last message as it is.");
  }
  const size_t lead = request.final_content.find(core);
  const std::string_view tail = std::string_view(request.final_content).substr(lead);
  const bool whole = std::string_view(rendered).substr(start).starts_with(tail);
  rendered.resize(start + (whole ? tail.size() : core.size()));
  return rendered;
}

}  // namespace tandem::openai

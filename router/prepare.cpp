#include "router/prepare.h"

#include "router/openai/render.h"
#include "router/templates/template_renderer.h"

namespace tandem::router {

using openai::CompletionRequest;
using openai::Kind;
using openai::Parsed;

Preparer::Preparer(Parts parts)
    : parts_(std::move(parts)),
      limits_(openai::Limits::from(parts_.config.router)),
      model_(openai::model_limits(parts_.tokenizer, parts_.config.model.context)) {}

Parsed<Prepared> Preparer::completion(std::string_view body, Kind kind,
                                      const Headers& objectives) const {
  Parsed<CompletionRequest> request = openai::parse_completion(body, kind, limits_);
  if (!request) return request.error();
  Parsed<Objectives> asked = read_objectives(objectives, *request, parts_.config.slo, hasher_);
  if (!asked) return asked.error();
  Parsed<std::string> model = openai::resolve_model(request->model, parts_.served);
  if (!model) return model.error();
  if (auto error = openai::validate_against_model(*request, model_)) return *error;
  Parsed<std::vector<Prompt>> prompts = encode(*request);
  if (!prompts) return prompts.error();
  for (Prompt& prompt : *prompts) {
    const std::vector<TokenId> whole = request->echo ? prompt.tokens : std::vector<TokenId>();
    openai::truncate_prompt(*request, model_, prompt.tokens);
    const auto length = static_cast<int64_t>(prompt.tokens.size());
    if (length == 0) return openai::invalid_value("prompt", "it has no tokens");
    Parsed<int> max_tokens = openai::resolve_max_tokens(*request, model_, length);
    if (!max_tokens) return max_tokens.error();
    prompt.max_tokens = *max_tokens;
    prompt.fingerprint = hasher_.fingerprint(asked->cache_root, prompt.tokens);
    prompt.blocks =
        hasher_.blocks(asked->cache_root, prompt.tokens,
                       static_cast<size_t>(parts_.config.scheduler.prefix_block_tokens));
    if (request->echo && (prompt.echo.empty() || whole != prompt.tokens))
      prompt.echo = parts_.tokenizer.decode(prompt.tokens, !request->skip_special_tokens);
  }
  return Prepared{std::move(*request), std::move(*model), std::move(*prompts), std::move(*asked)};
}

Parsed<std::vector<Prompt>> Preparer::encode(const CompletionRequest& request) const {
  std::vector<Prompt> prompts;
  if (const auto* lists = std::get_if<openai::TokenLists>(&request.prompts);
      lists != nullptr && request.kind == Kind::kCompletion) {
    for (const std::vector<TokenId>& tokens : *lists) prompts.push_back({.tokens = tokens});
    return prompts;
  }
  openai::Texts texts;
  if (request.kind == Kind::kChat) {
    Parsed<std::string> text = chat_text(request);
    if (!text) return text.error();
    texts.push_back(std::move(*text));
  } else {
    texts = std::get<openai::Texts>(request.prompts);
  }
  for (std::string& text : texts) {
    Result<std::vector<TokenId>> tokens =
        parts_.tokenizer.encode(text, request.add_special_tokens, true);
    if (!tokens.ok()) return openai::from_status(tokens.status());
    Prompt& prompt = prompts.emplace_back();
    prompt.tokens = std::move(*tokens);
    if (request.echo) prompt.echo = std::move(text);
  }
  return prompts;
}

Parsed<std::string> Preparer::chat_text(const CompletionRequest& request) const {
  const std::string& source = parts_.tokenizer.chat_template();
  if (source.empty() || parts_.renderer == nullptr)
    return openai::invalid_request("messages", "unsupported_value",
                                   "This model has no chat template: use /v1/completions.");
  const std::string context = openai::build_template_context(request, parts_.tokenizer.begin_text(),
                                                             parts_.tokenizer.end_text());
  Result<std::string> rendered =
      parts_.renderer->render(source, context, parts_.config.router.template_deadline);
  if (!rendered.ok()) return openai::from_status(rendered.status());
  return openai::finish_prompt_text(request, std::move(*rendered));
}

Parsed<std::string> Preparer::tokenize(std::string_view body) const {
  Parsed<openai::TokenizeRequest> request = openai::parse_tokenize(body, limits_);
  if (!request) return request.error();
  Parsed<std::string> model = openai::resolve_model(request->model, parts_.served);
  if (!model) return model.error();
  std::string text = std::move(request->text);
  if (request->chat) {
    Parsed<std::string> rendered = chat_text(*request->chat);
    if (!rendered) return rendered.error();
    text = std::move(*rendered);
  }
  Result<std::vector<TokenId>> tokens =
      parts_.tokenizer.encode(text, request->add_special, request->parse_special);
  if (!tokens.ok()) return openai::from_status(tokens.status());
  return openai::tokenize_body(*request, *tokens, parts_.tokenizer, model_.context);
}

Parsed<std::string> Preparer::detokenize(std::string_view body) const {
  Parsed<openai::DetokenizeRequest> request =
      openai::parse_detokenize(body, limits_, parts_.tokenizer.vocab());
  if (!request) return request.error();
  Parsed<std::string> model = openai::resolve_model(request->model, parts_.served);
  if (!model) return model.error();
  return openai::detokenize_body(parts_.tokenizer.decode(request->tokens, true));
}

}  // namespace tandem::router

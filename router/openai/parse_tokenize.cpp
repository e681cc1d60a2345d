// Bodies of /tokenize and /detokenize. Two forms are in use; which one it is shows in the keys.
#include "router/openai/parse_parts.h"

namespace tandem::openai {

Parsed<TokenizeRequest> parse_tokenize(std::string_view body, const Limits& limits) {
  const Parsed<Document> document = Document::parse_object(body, limits.depth_max);
  if (!document.ok()) return document.error();
  Problems problems;
  Fields fields(object_of(document->root()), "", problems);

  TokenizeRequest request;
  request.model = fields.string("model").value_or("");
  const std::optional<std::string_view> prompt = fields.string("prompt");
  const std::optional<std::string_view> content = fields.string("content");
  if (prompt) {
    request.text = *prompt;
    request.add_special = true;
  } else if (content) {
    request.text = *content;
  } else if (fields.find("messages") != nullptr) {
    request.chat.emplace();
    request.chat->kind = Kind::kChat;
    read_template_fields(fields, limits, *request.chat);
  } else {
    problems.add(missing_parameter("prompt"));
  }
  request.add_special = fields.boolean("add_special_tokens").value_or(request.add_special);
  request.add_special = fields.boolean("add_special").value_or(request.add_special);
  request.parse_special = fields.boolean("parse_special").value_or(true);
  request.with_strings = fields.boolean("return_token_strs").value_or(false);
  request.with_pieces = fields.boolean("with_pieces").value_or(false);
  if (request.chat) request.chat->add_special_tokens = request.add_special;
  if (problems.any()) return problems.first();
  return request;
}

Parsed<DetokenizeRequest> parse_detokenize(std::string_view body, const Limits& limits, int vocab) {
  const Parsed<Document> document = Document::parse_object(body, limits.depth_max);
  if (!document.ok()) return document.error();
  Problems problems;
  Fields fields(object_of(document->root()), "", problems);

  DetokenizeRequest request;
  request.model = fields.string("model").value_or("");
  const Element* tokens = fields.find_array("tokens");
  if (tokens != nullptr) {
    request.tokens = read_token_ids(array_of(*tokens), "tokens", problems);
  } else if (!problems.any()) {
    problems.add(missing_parameter("tokens"));
  }
  for (const TokenId token : request.tokens) {
    if (token < vocab) continue;
    problems.add(invalid_value("tokens", "token ids must be within the model's vocabulary."));
    break;
  }
  if (problems.any()) return problems.first();
  return request;
}

}  // namespace tandem::openai

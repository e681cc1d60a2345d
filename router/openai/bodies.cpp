// The small bodies: models, tokenize, detokenize, health, version.
#include "router/openai/json_writer.h"
#include "router/openai/render.h"
#include "router/openai/utf8.h"

namespace tandem::openai {
namespace {

void write_model(const ModelCard& model, JsonWriter& json) {
  json.begin_object().key("id").string(model.id).key("object").string("model");
  json.key("created").integer(model.created).key("owned_by").string("tandem");
  json.key("root").string(model.id).key("parent").null();
  json.key("max_model_len").integer(model.context);
  json.key("permission").begin_array().end_array().end_object();
}

// A string, or the bytes where they are not valid UTF-8.
void write_piece(const std::string& piece, JsonWriter& json) {
  if (is_valid_utf8(piece)) {
    json.string(piece);
    return;
  }
  json.begin_array();
  for (const char byte : piece) json.integer(static_cast<int>(static_cast<unsigned char>(byte)));
  json.end_array();
}

}  // namespace

std::string models_body(std::span<const ModelCard> models) {
  std::string out;
  JsonWriter json(out);
  json.begin_object().key("object").string("list").key("data").begin_array();
  for (const ModelCard& model : models) write_model(model, json);
  json.end_array().end_object();
  return out;
}

std::string model_body(const ModelCard& model) {
  std::string out;
  JsonWriter json(out);
  write_model(model, json);
  return out;
}

std::string tokenize_body(const TokenizeRequest& request, std::span<const TokenId> tokens,
                          const Tokenizer& tokenizer, int context) {
  std::string out;
  JsonWriter json(out);
  json.begin_object().key("count").integer(tokens.size());
  json.key("max_model_len").integer(context).key("tokens").begin_array();
  for (const TokenId token : tokens) {
    if (!request.with_pieces) {
      json.integer(token);
      continue;
    }
    json.begin_object().key("id").integer(token).key("piece");
    write_piece(tokenizer.piece(token, true), json);
    json.end_object();
  }
  json.end_array();
  if (request.with_strings) {
    json.key("token_strs").begin_array();
    for (const TokenId token : tokens) json.string(tokenizer.piece(token, true));
    json.end_array();
  }
  json.end_object();
  return out;
}

std::string detokenize_body(std::string_view text) {
  std::string out;
  JsonWriter(out)
      .begin_object()
      .key("prompt")
      .string(text)
      .key("content")
      .string(text)
      .end_object();
  return out;
}

std::string health_body() { return R"({"status":"ok"})"; }

std::string version_body(std::string_view version) {
  std::string out;
  JsonWriter(out).begin_object().key("version").string(version).end_object();
  return out;
}

}  // namespace tandem::openai

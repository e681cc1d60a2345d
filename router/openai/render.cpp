#include "router/openai/render.h"

#include <utility>

#include "common/random.h"
#include "router/openai/render_parts.h"
#include "router/openai/utf8.h"

namespace tandem::openai {
namespace {

constexpr std::string_view kDone = "data: [DONE]\n\n";
constexpr std::string_view kFrameStart = "data: ";
constexpr std::string_view kFrameEnd = "\n\n";

void write_meta(const ResponseMeta& meta, bool chunk, JsonWriter& json) {
  json.begin_object().key("id").string(meta.id).key("object");
  if (meta.kind == Kind::kChat) {
    json.string(chunk ? "chat.completion.chunk" : "chat.completion");
  } else {
    json.string("text_completion");
  }
  json.key("created").integer(meta.created).key("model").string(meta.model);
  json.key("system_fingerprint").string(meta.fingerprint);
}

}  // namespace

ResponseMeta ResponseMeta::from(const CompletionRequest& request, std::string id, int64_t created,
                                std::string model, std::string fingerprint) {
  ResponseMeta meta;
  meta.kind = request.kind;
  meta.id = std::move(id);
  meta.created = created;
  meta.model = std::move(model);
  meta.fingerprint = std::move(fingerprint);
  meta.include_usage = request.include_usage;
  meta.continuous_usage = request.continuous_usage;
  meta.return_token_ids = request.return_token_ids;
  meta.tokens_as_token_ids = request.tokens_as_token_ids;
  meta.logprobs = request.logprobs;
  meta.stream_interval = request.stream_interval;
  return meta;
}

std::string make_id(Kind kind) {
  static constexpr char kLetters[] =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZab";
  std::string id = kind == Kind::kChat ? "chatcmpl-" : "cmpl-";
  for (const char byte : random_bytes(24)) id += kLetters[static_cast<unsigned char>(byte) & 63];
  return id;
}

std::string make_fingerprint(std::string_view build, std::string_view model_digest,
                             std::string_view layout_digest) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a: equal in every process and on every machine
  for (const std::string_view part : {build, model_digest, layout_digest}) {
    for (const char byte : part) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
    hash = (hash ^ 0xff) * 0x100000001b3;
  }
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "fp_";
  for (int shift = 60; shift > 20; shift -= 4) out += kHex[(hash >> shift) & 15];
  return out;
}

StreamRenderer::StreamRenderer(ResponseMeta meta, int choices)
    : meta_(std::move(meta)), choices_(static_cast<size_t>(choices)) {}

void StreamRenderer::write_tail(const Usage& so_far, JsonWriter& json) const {
  json.end_array();
  if (meta_.include_usage) {
    json.key("usage");
    if (meta_.continuous_usage) {
      write_usage(so_far, json);
    } else {
      json.null();
    }
  }
  json.end_object();
}

std::string StreamRenderer::start(int index, const ChoiceStart& start, const Usage& so_far) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (meta_.return_token_ids)
    choice.prompt_ids.assign(start.prompt_token_ids.begin(), start.prompt_token_ids.end());
  std::string out;
  if (meta_.kind == Kind::kCompletion) {
    choice.offset_base = count_code_points(start.echo);
    if (start.echo.empty()) return out;
    TextDelta echo;
    echo.text = start.echo;
    completion_chunk(index, echo, so_far, out);
    return out;
  }
  out += kFrameStart;
  JsonWriter json(out);
  write_meta(meta_, true, json);
  if (meta_.return_token_ids && !prompt_ids_sent_) {
    json.key("prompt_token_ids");
    write_token_ids(choice.prompt_ids, json);
    prompt_ids_sent_ = true;
  }
  json.key("choices").begin_array().begin_object().key("index").integer(index);
  json.key("delta").begin_object().key("role").string("assistant").key("content").string("");
  json.end_object().key("logprobs").null().key("finish_reason").null().end_object();
  write_tail(so_far, json);
  out += kFrameEnd;
  return out;
}

std::string StreamRenderer::delta(int index, TextDelta delta, const Usage& so_far) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.waiting.append(std::move(delta));
  ++choice.tokens_waiting;
  std::string out;
  const bool due = !choice.first_sent || choice.waiting.finished() || choice.waiting.broken_off ||
                   choice.tokens_waiting >= meta_.stream_interval;
  if (!due || choice.waiting.empty()) return out;
  const TextDelta ready = std::exchange(choice.waiting, {});
  choice.tokens_waiting = 0;
  choice.first_sent = true;
  if (meta_.kind == Kind::kCompletion) {
    completion_chunk(index, ready, so_far, out);
    return out;
  }
  if (!ready.text.empty() || !ready.logprobs.empty() || !ready.token_ids.empty())
    chat_chunk(index, ready, false, so_far, out);
  if (ready.finished()) chat_chunk(index, ready, true, so_far, out);
  return out;
}

void StreamRenderer::chat_chunk(int index, const TextDelta& delta, bool last, const Usage& so_far,
                                std::string& out) const {
  out += kFrameStart;
  JsonWriter json(out);
  write_meta(meta_, true, json);
  json.key("choices").begin_array().begin_object().key("index").integer(index);
  json.key("delta").begin_object();
  if (last) {
    json.end_object().key("logprobs").null();
    write_finish(delta, json);
  } else {
    json.key("content").string(delta.text).end_object().key("logprobs");
    if (delta.logprobs.empty()) {
      json.null();
    } else {
      write_logprobs(meta_, delta.logprobs, 0, json);
    }
    json.key("finish_reason").null();
    if (meta_.return_token_ids) {
      json.key("token_ids");
      write_token_ids(delta.token_ids, json);
    }
  }
  json.end_object();
  write_tail(so_far, json);
  out += kFrameEnd;
}

void StreamRenderer::completion_chunk(int index, const TextDelta& delta, const Usage& so_far,
                                      std::string& out) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  out += kFrameStart;
  JsonWriter json(out);
  write_meta(meta_, true, json);
  json.key("choices").begin_array().begin_object().key("index").integer(index);
  json.key("text").string(delta.text).key("logprobs");
  if (delta.logprobs.empty()) {
    json.null();
  } else {
    write_logprobs(meta_, delta.logprobs, choice.offset_base, json);
  }
  write_finish(delta, json);
  if (meta_.return_token_ids) {
    if (!choice.prompt_ids.empty()) {
      json.key("prompt_token_ids");
      write_token_ids(std::exchange(choice.prompt_ids, {}), json);
    }
    json.key("token_ids");
    write_token_ids(delta.token_ids, json);
  }
  json.end_object();
  write_tail(so_far, json);
  out += kFrameEnd;
}

std::string StreamRenderer::finish(const Usage& usage) const {
  std::string out;
  if (meta_.include_usage) {
    out += kFrameStart;
    JsonWriter json(out);
    write_meta(meta_, true, json);
    json.key("choices").begin_array().end_array().key("usage");
    write_usage(usage, json);
    json.end_object();
    out += kFrameEnd;
  }
  out += kDone;
  return out;
}

std::string StreamRenderer::error(const ApiError& error) {
  std::string out(kFrameStart);
  out += error.body();
  out += kFrameEnd;
  out += kDone;
  return out;
}

BodyRenderer::BodyRenderer(ResponseMeta meta, int choices)
    : meta_(std::move(meta)), choices_(static_cast<size_t>(choices)) {}

void BodyRenderer::start(int index, const ChoiceStart& start) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.echo = start.echo;
  if (meta_.return_token_ids)
    choice.prompt_ids.assign(start.prompt_token_ids.begin(), start.prompt_token_ids.end());
}

void BodyRenderer::delta(int index, TextDelta delta) {
  choices_[static_cast<size_t>(index)].all.append(std::move(delta));
}

void BodyRenderer::write_choice(int index, JsonWriter& json) const {
  const Choice& choice = choices_[static_cast<size_t>(index)];
  json.begin_object().key("index").integer(index);
  if (meta_.kind == Kind::kChat) {
    json.key("message").begin_object().key("role").string("assistant");
    json.key("content").string(choice.all.text).key("refusal").null().end_object();
  } else {
    json.key("text").string(choice.echo + choice.all.text);
  }
  json.key("logprobs");
  write_logprobs(meta_, choice.all.logprobs, count_code_points(choice.echo), json);
  write_finish(choice.all, json);
  if (meta_.return_token_ids) {
    if (meta_.kind == Kind::kCompletion) {
      json.key("prompt_token_ids");
      write_token_ids(choice.prompt_ids, json);
    }
    json.key("token_ids");
    write_token_ids(choice.all.token_ids, json);
  }
  json.end_object();
}

std::string BodyRenderer::body(const Usage& usage) const {
  std::string out;
  JsonWriter json(out);
  write_meta(meta_, false, json);
  if (meta_.return_token_ids && meta_.kind == Kind::kChat) {
    json.key("prompt_token_ids");
    write_token_ids(choices_.front().prompt_ids, json);
  }
  json.key("choices").begin_array();
  for (int index = 0; index < static_cast<int>(choices_.size()); ++index) write_choice(index, json);
  json.end_array().key("usage");
  write_usage(usage, json);
  json.end_object();
  return out;
}

}  // namespace tandem::openai

#include "router/openai/render_parts.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tandem::openai {
namespace {

// How a token is named in an entry. An invalid piece of UTF-8 is shown as U+FFFD; `bytes` has the
// truth.
std::string token_name(const ResponseMeta& meta, TokenId token, const std::string& bytes) {
  if (meta.tokens_as_token_ids) return "token_id:" + std::to_string(token);
  return bytes;
}

void write_bytes(std::string_view bytes, JsonWriter& json) {
  json.begin_array();
  for (const char byte : bytes) json.integer(static_cast<int>(static_cast<unsigned char>(byte)));
  json.end_array();
}

// Tokens that are not in the text have an empty name, so that the names together are the text.
std::string entry_name(const ResponseMeta& meta, const LogprobEntry& entry) {
  return token_name(meta, entry.token, entry.hidden ? std::string() : entry.bytes);
}

void write_chat_entry(const ResponseMeta& meta, const LogprobEntry& entry, JsonWriter& json) {
  json.begin_object();
  json.key("token").string(entry_name(meta, entry)).key("logprob").number(entry.logprob);
  json.key("bytes");
  write_bytes(entry.bytes, json);
  json.key("top_logprobs").begin_array();
  for (const TopEntry& top : entry.top) {
    json.begin_object().key("token").string(token_name(meta, top.token, top.bytes));
    json.key("logprob").number(top.logprob).key("bytes");
    write_bytes(top.bytes, json);
    json.end_object();
  }
  json.end_array().end_object();
}

// {name: logprob}: the best and the chosen one. Of equal names the larger value stays.
void write_top_map(const ResponseMeta& meta, const LogprobEntry& entry, JsonWriter& json) {
  std::vector<std::pair<std::string, float>> best;
  const auto add = [&best](std::string name, float logprob) {
    const auto same = std::find_if(best.begin(), best.end(),
                                   [&name](const auto& pair) { return pair.first == name; });
    if (same == best.end()) {
      best.emplace_back(std::move(name), logprob);
    } else {
      same->second = std::max(same->second, logprob);
    }
  };
  for (const TopEntry& top : entry.top) add(token_name(meta, top.token, top.bytes), top.logprob);
  add(token_name(meta, entry.token, entry.bytes), entry.logprob);
  json.begin_object();
  for (const auto& [name, logprob] : best) json.key(name).number(logprob);
  json.end_object();
}

void write_completion_logprobs(const ResponseMeta& meta, std::span<const LogprobEntry> entries,
                               size_t offset_base, JsonWriter& json) {
  json.begin_object().key("tokens").begin_array();
  for (const LogprobEntry& entry : entries) json.string(entry_name(meta, entry));
  json.end_array().key("token_logprobs").begin_array();
  for (const LogprobEntry& entry : entries) json.number(entry.logprob);
  json.end_array().key("top_logprobs").begin_array();
  for (const LogprobEntry& entry : entries) write_top_map(meta, entry, json);
  json.end_array().key("text_offset").begin_array();
  for (const LogprobEntry& entry : entries) json.integer(offset_base + entry.text_offset);
  json.end_array().end_object();
}

}  // namespace

void write_usage(const Usage& usage, JsonWriter& json) {
  json.begin_object();
  json.key("prompt_tokens").integer(usage.prompt_tokens);
  json.key("completion_tokens").integer(usage.completion_tokens);
  json.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").begin_object();
  json.key("cached_tokens").integer(usage.cached_tokens).end_object();
  json.key("completion_tokens_details").begin_object();
  json.key("reasoning_tokens").integer(0).end_object();
  json.end_object();
}

void write_finish(const TextDelta& delta, JsonWriter& json) {
  json.key("finish_reason");
  if (!delta.finished()) {
    json.null();
    return;
  }
  json.string(delta.finish == Finish::kLength ? "length" : "stop").key("stop_reason");
  if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) {
    json.string(*text);
  } else if (const auto* token = std::get_if<TokenId>(&delta.stop_reason)) {
    json.integer(*token);
  } else {
    json.null();
  }
}

void write_token_ids(std::span<const TokenId> ids, JsonWriter& json) {
  json.begin_array();
  for (const TokenId id : ids) json.integer(id);
  json.end_array();
}

void write_logprobs(const ResponseMeta& meta, std::span<const LogprobEntry> entries,
                    size_t offset_base, JsonWriter& json) {
  if (meta.logprobs < 0) {
    json.null();
  } else if (meta.kind == Kind::kCompletion) {
    write_completion_logprobs(meta, entries, offset_base, json);
  } else {
    json.begin_object().key("content").begin_array();
    for (const LogprobEntry& entry : entries) write_chat_entry(meta, entry, json);
    json.end_array().key("refusal").null().end_object();
  }
}

}  // namespace tandem::openai

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "link/messages.h"
#include "link/pack.h"

// The commands that carry a leg, the end of a prefill, and the tokens of a decode step.
namespace tandem::link {
namespace {

using nlohmann::json;

constexpr size_t kNameBytesMax = 256;
constexpr size_t kLegTokensMax = 1u << 22;
constexpr int kChoicesMax = 255;  // A choice's index is one byte in a token frame.
constexpr size_t kStopTokensMax = 4096;
constexpr size_t kBiasMax = 65536;
constexpr int kTopMax = 20;
constexpr int64_t kCountMax = std::numeric_limits<int32_t>::max();
constexpr int64_t kDeadlineMaxMs = 7ll * 24 * 3600 * 1000;
constexpr size_t kTransferTokenBytes = 16;

bool all_tokens(const std::vector<TokenId>& tokens) {
  return std::all_of(tokens.begin(), tokens.end(), [](TokenId token) { return token >= 0; });
}

json sampling_json(const SamplingParams& params) {
  std::vector<TokenId> bias_tokens;
  std::vector<float> bias_values;
  for (const auto& [token, value] : params.logit_bias) {
    bias_tokens.push_back(token);
    bias_values.push_back(value);
  }
  return {{"temperature", params.temperature},
          {"top_p", params.top_p},
          {"top_k", params.top_k},
          {"min_p", params.min_p},
          {"repetition_penalty", params.repetition_penalty},
          {"frequency_penalty", params.frequency_penalty},
          {"presence_penalty", params.presence_penalty},
          {"bias_tokens", pack_numbers<TokenId>(bias_tokens)},
          {"bias_values", pack_numbers<float>(bias_values)},
          {"min_tokens", params.min_tokens},
          {"ignore_eos", params.ignore_eos},
          {"stop_tokens", pack_numbers<TokenId>(params.stop_tokens)},
          {"logprobs", params.logprobs}};
}

Status read_sampling(const json& object, SamplingParams& params) {
  Fields fields(object);
  std::vector<TokenId> bias_tokens;
  std::vector<float> bias_values;
  fields.real("temperature", params.temperature, 0, 1000);
  fields.real("top_p", params.top_p, 0, 1);
  fields.number("top_k", params.top_k, 0, kCountMax);
  fields.real("min_p", params.min_p, 0, 1);
  fields.real("repetition_penalty", params.repetition_penalty, 1e-6, 1e6);
  fields.real("frequency_penalty", params.frequency_penalty, -1000, 1000);
  fields.real("presence_penalty", params.presence_penalty, -1000, 1000);
  fields.numbers("bias_tokens", bias_tokens, 0, kBiasMax);
  fields.numbers("bias_values", bias_values, 0, kBiasMax);
  fields.number("min_tokens", params.min_tokens, 0, kCountMax);
  fields.flag("ignore_eos", params.ignore_eos);
  fields.numbers("stop_tokens", params.stop_tokens, 0, kStopTokensMax);
  fields.number("logprobs", params.logprobs, -1, kTopMax);
  if (bias_tokens.size() != bias_values.size()) fields.fail("logit_bias has unequal halves");
  if (!all_tokens(bias_tokens) || !all_tokens(params.stop_tokens)) fields.fail("negative token");
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("sampling"));
  for (size_t i = 0; i < bias_tokens.size(); ++i) {
    if (!std::isfinite(bias_values[i])) {
      return Status(ErrorCode::kInvalidArgument, "sampling: a bias is not finite");
    }
    params.logit_bias.emplace_back(bias_tokens[i], bias_values[i]);
  }
  return {};
}

json leg_json(const Leg& leg) {
  return {{"transfer", leg.transfer.value},
          {"request", leg.request},
          {"tokens", pack_numbers<TokenId>(leg.tokens)},
          {"prompt_count", leg.prompt_count},
          {"choices", leg.choices},
          {"seeds", pack_numbers<uint64_t>(leg.seeds)},
          {"sampling", sampling_json(leg.sampling)},
          {"max_tokens", leg.max_tokens},
          {"deadline_ms", leg.deadline_ms},
          {"tpot_slo_us", leg.tpot_slo_us}};
}

Status read_leg(const json& object, Leg& leg) {
  Fields fields(object);
  fields.id("transfer", leg.transfer.value);
  fields.text("request", leg.request, kNameBytesMax);
  fields.numbers("tokens", leg.tokens, 1, kLegTokensMax);
  fields.number("prompt_count", leg.prompt_count, 1, kLegTokensMax);
  fields.number("choices", leg.choices, 1, kChoicesMax);
  fields.numbers("seeds", leg.seeds, 1, kChoicesMax);
  fields.number("max_tokens", leg.max_tokens, 1, kCountMax);
  fields.number("deadline_ms", leg.deadline_ms, 0, kDeadlineMaxMs);
  fields.number("tpot_slo_us", leg.tpot_slo_us, 0, kDeadlineMaxMs * 1000);
  if (const json* sampling = fields.map("sampling")) {
    if (Status status = read_sampling(*sampling, leg.sampling); !status.ok()) return status;
  }
  TANDEM_RETURN_IF_ERROR(fields.status());
  const auto emitted = static_cast<int64_t>(leg.tokens.size()) - leg.prompt_count;
  if (emitted < 0) fields.fail("prompt_count is above the number of tokens");
  if (emitted > 0 && leg.choices != 1) fields.fail("a resumed leg has one choice");
  if (emitted >= leg.max_tokens) fields.fail("nothing left to generate");
  if (leg.seeds.size() != static_cast<size_t>(leg.choices)) fields.fail("one seed per choice");
  if (!all_tokens(leg.tokens)) fields.fail("negative token");
  return fields.status();
}

json sampled_json(const SampledToken& sampled) {
  std::vector<TokenId> top_tokens;
  std::vector<float> top_logprobs;
  for (const TokenLogprob& top : sampled.top) {
    top_tokens.push_back(top.token);
    top_logprobs.push_back(top.logprob);
  }
  return {{"token", sampled.token},
          {"finish", static_cast<int>(sampled.finish)},
          {"logprob", sampled.logprob},
          {"top_tokens", pack_numbers<TokenId>(top_tokens)},
          {"top_logprobs", pack_numbers<float>(top_logprobs)}};
}

Status read_sampled(const json& object, SampledToken& sampled) {
  Fields fields(object);
  int finish = 0;
  double logprob = 0;
  std::vector<TokenId> top_tokens;
  std::vector<float> top_logprobs;
  fields.number("token", sampled.token, 0, kCountMax);
  fields.number("finish", finish, 0, static_cast<int>(FinishReason::kLength));
  fields.real("logprob", logprob, -1e9, 1e9);
  fields.numbers("top_tokens", top_tokens, 0, kTopMax);
  fields.numbers("top_logprobs", top_logprobs, 0, kTopMax);
  if (top_tokens.size() != top_logprobs.size()) fields.fail("unequal halves of top");
  TANDEM_RETURN_IF_ERROR(fields.status());
  sampled.finish = static_cast<FinishReason>(finish);
  sampled.logprob = static_cast<float>(logprob);
  for (size_t i = 0; i < top_tokens.size(); ++i) {
    if (top_tokens[i] < 0 || !std::isfinite(top_logprobs[i])) {
      return Status(ErrorCode::kInvalidArgument, "top entry out of range");
    }
    sampled.top.push_back({top_tokens[i], top_logprobs[i]});
  }
  return {};
}

// Compact binary, little endian as the machine is (pack.cpp asserts it).
template <class Value>
void append(std::string& out, Value value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}
  template <class Value>
  Value take() {
    Value value{};
    if (bytes_.size() < sizeof value) {
      good_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  bool good() const { return good_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool good_ = true;
};

bool take_entry(Cursor& cursor, TokenEntry& entry) {
  entry.transfer.value = cursor.take<uint64_t>();
  entry.choice = cursor.take<uint8_t>();
  const auto finish = cursor.take<uint8_t>();
  const auto n_top = cursor.take<uint8_t>();
  const auto has_logprob = cursor.take<uint8_t>();
  entry.sampled.token = cursor.take<int32_t>();
  if (!cursor.good() || finish > static_cast<uint8_t>(FinishReason::kLength) || n_top > kTopMax ||
      has_logprob > 1 || entry.sampled.token < 0) {
    return false;
  }
  entry.sampled.finish = static_cast<FinishReason>(finish);
  entry.has_logprob = has_logprob == 1;
  if (entry.has_logprob) entry.sampled.logprob = cursor.take<float>();
  for (int i = 0; i < n_top; ++i) {
    TokenLogprob top;
    top.token = cursor.take<int32_t>();
    top.logprob = cursor.take<float>();
    if (top.token < 0 || !std::isfinite(top.logprob)) return false;
    entry.sampled.top.push_back(top);
  }
  return cursor.good() && std::isfinite(entry.sampled.logprob);
}

}  // namespace

std::string PrefillCommand::encode() const {
  return pack({{"leg", leg_json(leg)},
               {"decode_listen", decode_listen},
               {"decode_name", decode_name},
               {"decode_epoch", decode_epoch.value},
               {"token", pack_bytes(token)}});
}

Result<PrefillCommand> PrefillCommand::decode(std::string_view body) {
  PrefillCommand command;
  Fields fields(body);
  const json* leg = fields.map("leg");
  fields.text("decode_listen", command.decode_listen, kNameBytesMax);
  fields.text("decode_name", command.decode_name, kNameBytesMax);
  fields.id("decode_epoch", command.decode_epoch.value);
  fields.bytes("token", command.token, 0, kTransferTokenBytes);
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("prefill"));
  TANDEM_RETURN_IF_ERROR(read_leg(*leg, command.leg).with_context("prefill"));
  if (!command.decode_listen.empty() && command.token.size() != kTransferTokenBytes) {
    return Status(ErrorCode::kInvalidArgument, "prefill: a transfer needs a token of 16 bytes");
  }
  return command;
}

std::string DecodeCommand::encode() const {
  return pack({{"leg", leg_json(leg)}, {"local", local}, {"token", pack_bytes(token)}});
}

Result<DecodeCommand> DecodeCommand::decode(std::string_view body) {
  DecodeCommand command;
  Fields fields(body);
  const json* leg = fields.map("leg");
  fields.flag("local", command.local);
  fields.bytes("token", command.token, 0, kTransferTokenBytes);
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("decode"));
  TANDEM_RETURN_IF_ERROR(read_leg(*leg, command.leg).with_context("decode"));
  if (!command.local && command.token.size() != kTransferTokenBytes) {
    return Status(ErrorCode::kInvalidArgument, "decode: a transfer needs a token of 16 bytes");
  }
  return command;
}

std::string PrefillDone::encode() const {
  json tokens = json::array();
  for (const SampledToken& sampled : first) tokens.push_back(sampled_json(sampled));
  return pack({{"transfer", transfer.value},
               {"first", std::move(tokens)},
               {"cached_tokens", cached_tokens},
               {"computed_tokens", computed_tokens},
               {"kv_bytes", kv_bytes},
               {"started_us", started_us},
               {"ended_us", ended_us}});
}

Result<PrefillDone> PrefillDone::decode(std::string_view body) {
  constexpr int64_t kBig = 1ll << 60;
  PrefillDone done;
  Fields fields(body);
  fields.id("transfer", done.transfer.value);
  fields.number("cached_tokens", done.cached_tokens, 0, kLegTokensMax);
  fields.number("computed_tokens", done.computed_tokens, 0, kLegTokensMax);
  fields.number("kv_bytes", done.kv_bytes, 0, kBig);
  fields.number("started_us", done.started_us, 0, kBig);
  fields.number("ended_us", done.ended_us, 0, kBig);
  const json* first = fields.array("first", 1, kChoicesMax);
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("prefill_done"));
  for (const json& object : *first) {
    SampledToken sampled;
    TANDEM_RETURN_IF_ERROR(read_sampled(object, sampled).with_context("prefill_done"));
    done.first.push_back(std::move(sampled));
  }
  return done;
}

std::string Tokens::encode() const {
  TANDEM_CHECK(entries.size() <= std::numeric_limits<uint16_t>::max(),
               "too many tokens in a frame");
  std::string out;
  out.reserve(2 + entries.size() * 20);
  append(out, static_cast<uint16_t>(entries.size()));
  for (const TokenEntry& entry : entries) {
    append(out, entry.transfer.value);
    append(out, static_cast<uint8_t>(entry.choice));
    append(out, static_cast<uint8_t>(entry.sampled.finish));
    append(out, static_cast<uint8_t>(entry.sampled.top.size()));
    append(out, static_cast<uint8_t>(entry.has_logprob ? 1 : 0));
    append(out, entry.sampled.token);
    if (entry.has_logprob) append(out, entry.sampled.logprob);
    for (const TokenLogprob& top : entry.sampled.top) {
      append(out, top.token);
      append(out, top.logprob);
    }
  }
  return out;
}

Result<Tokens> Tokens::decode(std::string_view body) {
  Cursor cursor(body);
  const auto count = cursor.take<uint16_t>();
  Tokens tokens;
  for (int i = 0; i < count; ++i) {
    TokenEntry entry;
    if (!take_entry(cursor, entry)) {
      return Status(ErrorCode::kInvalidArgument, "tokens: malformed entry");
    }
    tokens.entries.push_back(std::move(entry));
  }
  if (!cursor.good() || !cursor.at_end()) {
    return Status(ErrorCode::kInvalidArgument, "tokens: wrong length");
  }
  return tokens;
}

}  // namespace tandem::link

#include "link/messages.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "link/pack.h"

// Hello, Load and the small commands. Legs and tokens are in leg_messages.cpp.
namespace tandem::link {
namespace {

using nlohmann::json;

constexpr size_t kNameBytesMax = 256;
constexpr size_t kReasonBytesMax = 4096;
constexpr size_t kTransportsMax = 16;
constexpr size_t kCountersMax = 4096;
constexpr int64_t kSlotsMax = 1 << 20;
constexpr int64_t kTokensMax = 1ll << 48;
constexpr double kRealMax = 1e18;
constexpr int64_t kPositionMax = 1ll << 30;
constexpr double kStepMsMax = 3.6e6;  // An hour

void read_role(Fields& fields, Role& role) {
  std::string name;
  fields.text("role", name, kNameBytesMax);
  if (fields.status().ok() && !role_from_name(name, role))
    fields.fail("unknown role '" + name + "'");
}

json samples_json(const std::vector<StepSample>& samples) {
  json out = json::array();
  for (size_t i = 0; i < std::min(samples.size(), kSamplesMax); ++i) {
    const StepSample& sample = samples[i];
    out.push_back({sample.prompt_first, sample.prompt_tokens, sample.sequences,
                   sample.context_tokens, sample.ms});
  }
  return out;
}

// [prompt_first, prompt_tokens, sequences, context_tokens, ms] each.
bool read_sample(const json& entry, StepSample& sample) {
  if (!entry.is_array() || entry.size() != 5 || !entry[4].is_number()) return false;
  int64_t values[4] = {};
  for (size_t i = 0; i < 4; ++i) {
    if (!entry[i].is_number_unsigned()) return false;
    const auto value = entry[i].get<uint64_t>();
    if (value > uint64_t(i == 3 ? kTokensMax : kPositionMax)) return false;
    values[i] = static_cast<int64_t>(value);
  }
  sample = {static_cast<int>(values[0]), static_cast<int>(values[1]), static_cast<int>(values[2]),
            values[3], entry[4].get<double>()};
  return sample.ms >= 0 && sample.ms <= kStepMsMax;  // NaN is neither
}

}  // namespace

std::string Hello::encode() const {
  return pack({{"protocol", protocol},
               {"kind", kind},
               {"name", name},
               {"build", build},
               {"epoch", epoch.value},
               {"nonce", pack_bytes(nonce)},
               {"model", model},
               {"model_digest", model_digest},
               {"tokenizer_digest", tokenizer_digest},
               {"kv_layout_digest", kv_layout_digest},
               {"engine", engine},
               {"role", role_name(role)},
               {"listen", listen},
               {"slots", slots},
               {"kv_tokens", kv_tokens},
               {"kv_bytes_per_token", kv_bytes_per_token},
               {"context", context},
               {"chunk_tokens", chunk_tokens},
               {"exact_batch_max", exact_batch_max},
               {"transports", transports}});
}

Result<Hello> Hello::decode(std::string_view body) {
  Hello hello;
  Fields fields(body);
  fields.number("protocol", hello.protocol, 0, 1 << 20);
  fields.text("kind", hello.kind, kNameBytesMax);
  fields.text("name", hello.name, kNameBytesMax);
  fields.text("build", hello.build, kNameBytesMax);
  fields.id("epoch", hello.epoch.value);
  fields.bytes("nonce", hello.nonce, 16, 16);
  fields.text("model", hello.model, kNameBytesMax);
  fields.text("model_digest", hello.model_digest, kNameBytesMax);
  fields.text("tokenizer_digest", hello.tokenizer_digest, kNameBytesMax);
  fields.text("kv_layout_digest", hello.kv_layout_digest, kNameBytesMax);
  fields.text("engine", hello.engine, kNameBytesMax);
  read_role(fields, hello.role);
  fields.text("listen", hello.listen, kNameBytesMax);
  fields.number("slots", hello.slots, 0, kSlotsMax);
  fields.number("kv_tokens", hello.kv_tokens, 0, kTokensMax);
  fields.number("kv_bytes_per_token", hello.kv_bytes_per_token, 0, kTokensMax);
  fields.number("context", hello.context, 0, 1ll << 30);
  fields.number("chunk_tokens", hello.chunk_tokens, 0, 1ll << 30);
  fields.number("exact_batch_max", hello.exact_batch_max, 1, 1ll << 30);
  if (const json* names = fields.array("transports", 0, kTransportsMax)) {
    for (const json& name : *names) {
      if (!name.is_string() || name.get_ref<const std::string&>().size() > kNameBytesMax) {
        fields.fail("field 'transports' holds more than short names");
        break;
      }
      hello.transports.push_back(name.get<std::string>());
    }
  }
  if (fields.status().ok() && hello.kind != "router" && hello.kind != "worker") {
    fields.fail("unknown kind of peer '" + hello.kind + "'");
  }
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("hello"));
  return hello;
}

std::string Load::encode() const {
  return pack({{"role", role_name(role)},
               {"draining", draining},
               {"switching_to", switching_to},
               {"role_error", std::string_view(role_error).substr(0, kReasonBytesMax)},
               {"slots", slots},
               {"slots_free", slots_free},
               {"running", running},
               {"waiting", waiting},
               {"kv_used", kv_tokens_used},
               {"kv_reserved", kv_tokens_reserved},
               {"kv_capacity", kv_tokens_capacity},
               {"transfers", transfers_in_flight},
               {"backlog", prefill_backlog_tokens},
               {"step_ms", decode_step_ms},
               {"us_per_token", prefill_us_per_token},
               {"samples", samples_json(samples)},
               {"counters", counters}});
}

Result<Load> Load::decode(std::string_view body) {
  Load load;
  Fields fields(body);
  read_role(fields, load.role);
  fields.flag("draining", load.draining);
  fields.text("switching_to", load.switching_to, kNameBytesMax);
  fields.text("role_error", load.role_error, kReasonBytesMax);
  fields.number("slots", load.slots, 0, kSlotsMax);
  fields.number("slots_free", load.slots_free, 0, kSlotsMax);
  fields.number("running", load.running, 0, kSlotsMax);
  fields.number("waiting", load.waiting, 0, kSlotsMax);
  fields.number("kv_used", load.kv_tokens_used, 0, kTokensMax);
  fields.number("kv_reserved", load.kv_tokens_reserved, 0, kTokensMax);
  fields.number("kv_capacity", load.kv_tokens_capacity, 0, kTokensMax);
  fields.number("transfers", load.transfers_in_flight, 0, kSlotsMax);
  fields.number("backlog", load.prefill_backlog_tokens, 0, kTokensMax);
  fields.real("step_ms", load.decode_step_ms, 0, kRealMax);
  fields.real("us_per_token", load.prefill_us_per_token, 0, kRealMax);
  if (const json* samples = fields.array("samples", 0, kSamplesMax)) {
    load.samples.resize(samples->size());
    for (size_t i = 0; i < samples->size(); ++i) {
      if (!read_sample((*samples)[i], load.samples[i])) fields.fail("field 'samples' is malformed");
    }
  }
  Role ignored{};
  if (!load.switching_to.empty() && !role_from_name(load.switching_to, ignored)) {
    fields.fail("unknown role '" + load.switching_to + "'");
  }
  const json* counters = fields.map("counters");
  if (counters && counters->size() > kCountersMax) fields.fail("too many counters");
  if (counters && fields.status().ok()) {
    Fields values(*counters);
    for (const auto& [name, value] : counters->items()) {
      if (name.size() > kNameBytesMax) fields.fail("a counter's name is too long");
      values.real(name.c_str(), load.counters[name], -kRealMax, kRealMax);
    }
    if (!values.status().ok()) fields.fail(values.status().message());
  }
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("load"));
  return load;
}

std::string CancelCommand::encode() const {
  return pack({{"transfer", transfer.value}, {"choice", choice}, {"reason", reason}});
}

Result<CancelCommand> CancelCommand::decode(std::string_view body) {
  CancelCommand command;
  Fields fields(body);
  fields.id("transfer", command.transfer.value);
  fields.number("choice", command.choice, -1, 255);
  fields.text("reason", command.reason, kReasonBytesMax);
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("cancel"));
  return command;
}

std::string ControlCommand::encode() const {
  return pack({{"action", action}, {"role", role_name(role)}});
}

Result<ControlCommand> ControlCommand::decode(std::string_view body) {
  ControlCommand command;
  Fields fields(body);
  fields.text("action", command.action, kNameBytesMax);
  read_role(fields, command.role);
  const auto known = {"drain", "resume", "role"};
  if (fields.status().ok() && std::ranges::find(known, command.action) == known.end()) {
    fields.fail("unknown action '" + command.action + "'");
  }
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("control"));
  return command;
}

std::string LegFailed::encode() const {
  return pack({{"transfer", transfer.value},
               {"code", error_code_name(code)},
               {"message", std::string_view(message).substr(0, kReasonBytesMax)},
               {"retryable", retryable}});
}

Result<LegFailed> LegFailed::decode(std::string_view body) {
  LegFailed failed;
  Fields fields(body);
  std::string code;
  fields.id("transfer", failed.transfer.value);
  fields.text("code", code, kNameBytesMax);
  fields.text("message", failed.message, kReasonBytesMax);
  fields.flag("retryable", failed.retryable);
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("leg_failed"));
  failed.code = error_code_from_name(code);
  return failed;
}

std::string LegEvent::encode() const {
  json points = json::array();
  for (const auto& [at, landed_bytes] : landed) points.push_back({at, landed_bytes});
  return pack({{"transfer", transfer.value},
               {"name", name},
               {"at_us", at_us},
               {"bytes", bytes},
               {"landed", std::move(points)}});
}

Result<LegEvent> LegEvent::decode(std::string_view body) {
  constexpr size_t kPointsMax = 64;
  LegEvent event;
  Fields fields(body);
  fields.id("transfer", event.transfer.value);
  fields.text("name", event.name, kNameBytesMax);
  fields.number("at_us", event.at_us, 0, std::numeric_limits<int64_t>::max());
  fields.number("bytes", event.bytes, 0, kTokensMax);
  if (const json* points = fields.array("landed", 0, kPointsMax)) {
    for (const json& point : *points) {
      const bool good = point.is_array() && point.size() == 2 && point[0].is_number_integer() &&
                        point[1].is_number_integer();
      if (!good) {
        fields.fail("a landed point is not a pair of integers");
        break;
      }
      event.landed.emplace_back(point[0].get<int64_t>(), point[1].get<int64_t>());
    }
  }
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("leg_event"));
  return event;
}

}  // namespace tandem::link

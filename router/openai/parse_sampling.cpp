// Fields that both endpoints share.
#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <utility>

#include "router/openai/parse_parts.h"

namespace tandem::openai {
namespace {

constexpr double kTemperatureMin = 0.01;  // Smaller positive values overflow logits
constexpr size_t kNameBytesMax = 128;     // request_id, cache_salt
constexpr size_t kUserBytesMax = 1024;
constexpr int64_t kStreamIntervalMax = 4096;

void read_sampling(Fields& fields, const Limits& limits, CompletionRequest& request) {
  SamplingParams& sampling = request.sampling;
  sampling.temperature = fields.number("temperature", {0, 2}).value_or(1);
  if (sampling.temperature > 0)
    sampling.temperature = std::max(sampling.temperature, kTemperatureMin);
  sampling.top_p = fields.number("top_p", {0, 1}).value_or(1);
  if (sampling.top_p == 0) {
    sampling.temperature = 0;
    sampling.top_p = 1;
  }
  sampling.top_k = static_cast<int>(std::max<int64_t>(
      0, fields.integer("top_k", {-1, std::numeric_limits<int>::max()}).value_or(0)));
  sampling.min_p = fields.number("min_p", {0, 1}).value_or(0);
  sampling.frequency_penalty = fields.number("frequency_penalty", {-2, 2}).value_or(0);
  sampling.presence_penalty = fields.number("presence_penalty", {-2, 2}).value_or(0);
  const DecimalRange repetition{0, std::numeric_limits<float>::max(), true};
  const std::optional<double> alias = fields.number("repeat_penalty", repetition);
  sampling.repetition_penalty =
      fields.number("repetition_penalty", repetition).value_or(alias.value_or(1));
  sampling.min_tokens = static_cast<int>(fields.integer("min_tokens", {0, INT32_MAX}).value_or(0));
  sampling.ignore_eos = fields.boolean("ignore_eos").value_or(false);

  request.seed = fields.integer("seed");
  if (request.seed == -1) request.seed.reset();
  request.n = static_cast<int>(fields.integer("n", {1, limits.n_max}).value_or(1));
}

// {"<token id>": bias}
void read_logit_bias(Fields& fields, const Limits& limits, CompletionRequest& request) {
  Problems& problems = fields.problems();
  const Element* element = fields.find_object("logit_bias");
  if (element == nullptr) return;
  const std::string_view param = "logit_bias";
  std::map<TokenId, float> biases;
  for (const simdjson::dom::key_value_pair field : object_of(*element)) {
    TokenId id = 0;
    const char* end = field.key.data() + field.key.size();
    const auto [stopped, error] = std::from_chars(field.key.data(), end, id);
    if (error != std::errc{} || stopped != end || id < 0) {
      problems.add(invalid_value(param, "keys must be token ids of the model's vocabulary."));
      return;
    }
    double bias = 0;
    if (!field.value.is_number() || field.value.get_double().get(bias) != simdjson::SUCCESS) {
      problems.add(invalid_request(param, "invalid_value",
                                   "Invalid 'logit_bias': expected decimals as values, but got " +
                                       std::string(type_name(field.value)) + " instead."));
      return;
    }
    biases[id] = static_cast<float>(std::clamp(bias, -100.0, 100.0));
  }
  check_length_max(biases.size(), static_cast<size_t>(limits.logit_bias_max), param, true,
                   problems);
  request.sampling.logit_bias.assign(biases.begin(), biases.end());
}

void read_one_stop(const Element& element, const std::string& param, const Limits& limits,
                   CompletionRequest& request, Problems& problems) {
  if (!element.is_string()) {
    problems.add(invalid_type(param, "a string", type_name(element)));
    return;
  }
  const std::string_view text = text_of(element);
  if (text.empty()) {
    problems.add(invalid_value(param, "empty string. Expected a string of at least 1 character."));
    return;
  }
  check_length_max(text.size(), static_cast<size_t>(limits.stop_bytes_max), param, false, problems);
  request.stop.emplace_back(text);
}

void read_stop(Fields& fields, const Limits& limits, CompletionRequest& request) {
  Problems& problems = fields.problems();
  const Element* stop = fields.find("stop");
  if (stop != nullptr && stop->is_array()) {
    size_t count = 0;
    for (const Element element : array_of(*stop)) {
      const std::string param = "stop[" + std::to_string(count++) + "]";
      if (count > static_cast<size_t>(limits.stop_max)) continue;
      read_one_stop(element, param, limits, request, problems);
    }
    check_length_max(count, static_cast<size_t>(limits.stop_max), "stop", true, problems);
  } else if (stop != nullptr && stop->is_string()) {
    read_one_stop(*stop, "stop", limits, request, problems);
  } else if (stop != nullptr) {
    problems.add(invalid_type("stop", "a string or an array of strings", type_name(*stop)));
  }

  if (const Element* ids = fields.find_array("stop_token_ids")) {
    request.sampling.stop_tokens = read_token_ids(array_of(*ids), "stop_token_ids", problems);
    check_length_max(request.sampling.stop_tokens.size(),
                     static_cast<size_t>(limits.stop_token_ids_max), "stop_token_ids", true,
                     problems);
  }
  request.include_stop_str_in_output = fields.boolean("include_stop_str_in_output").value_or(false);
}

void read_stream(Fields& fields, CompletionRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  request.stream_interval =
      static_cast<int>(fields.integer("stream_interval", {1, kStreamIntervalMax}).value_or(1));
  const Element* element = fields.find_object("stream_options");
  if (element == nullptr) return;
  const simdjson::dom::object object = object_of(*element);
  Fields options(object, "stream_options.", fields.problems());
  request.include_usage = options.boolean("include_usage").value_or(false);
  request.continuous_usage =
      options.boolean("continuous_usage_stats").value_or(false) && request.include_usage;
  if (object.begin() != object.end() && !request.stream) {
    fields.problems().add(
        invalid_request("stream_options", "invalid_value",
                        "The 'stream_options' parameter is only allowed when 'stream' is true."));
  }
}

void read_cache_salt(Fields& fields, CompletionRequest& request) {
  const std::optional<std::string_view> salt = fields.string("cache_salt", kNameBytesMax);
  if (!salt) return;
  if (salt->empty() || salt->find_first_of(std::string_view("@/\\\0", 4)) != salt->npos) {
    fields.problems().add(
        invalid_value("cache_salt", "expected 1 to 128 bytes without '@', '/', '\\' and NUL."));
    return;
  }
  request.cache_salt = *salt;
}

void read_prompt_options(Fields& fields, CompletionRequest& request) {
  Problems& problems = fields.problems();
  request.add_special_tokens =
      fields.boolean("add_special_tokens").value_or(request.add_special_tokens);
  request.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  fields.boolean("spaces_between_special_tokens");
  request.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  request.tokens_as_token_ids = fields.boolean("return_tokens_as_token_ids").value_or(false);
  if (const auto keep = fields.integer("truncate_prompt_tokens", {-1, INT32_MAX})) {
    request.truncate_prompt_tokens = static_cast<int>(*keep);
    if (*keep == 0)
      problems.add(invalid_value("truncate_prompt_tokens", "expected a value >= 1, or -1."));
  }
  if (const auto side = fields.string("truncation_side")) {
    request.truncate_right = *side == "right";
    if (*side != "left" && *side != "right")
      problems.add(invalid_value("truncation_side", "expected 'left' or 'right'."));
  }
}

}  // namespace

void read_common(Fields& fields, const Limits& limits, CompletionRequest& request) {
  request.model = fields.string("model").value_or("");
  read_sampling(fields, limits, request);
  read_logit_bias(fields, limits, request);
  read_stop(fields, limits, request);
  read_stream(fields, request);
  read_prompt_options(fields, request);
  read_cache_salt(fields, request);
  request.priority = fields.integer("priority").value_or(0);
  request.request_id = fields.string("request_id", kNameBytesMax).value_or("");
  const auto identifier = fields.string("safety_identifier", kUserBytesMax);
  request.user = fields.string("user", kUserBytesMax).value_or(identifier.value_or(""));
  request.prompt_cache_key = fields.string("prompt_cache_key", kUserBytesMax).value_or("");
  // Taken and without effect here. Transfer parameters come from inside only, never from a client.
  fields.accept({"metadata", "store", "service_tier", "prompt_cache_retention",
                 "prompt_cache_options", "verbosity", "prediction", "kv_transfer_params"});
}

}  // namespace tandem::openai

// What only /v1/chat/completions has.
#include <algorithm>
#include <array>

#include "router/openai/json_writer.h"
#include "router/openai/parse_parts.h"

namespace tandem::openai {
namespace {

constexpr int64_t kTokensMax = INT32_MAX;
constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                      "high", "xhigh",   "max"};

void read_chat_logprobs(Fields& fields, const Limits& limits, CompletionRequest& request) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const int64_t top = fields.integer("top_logprobs", {0, limits.logprobs_max}).value_or(0);
  if (wanted) {
    request.logprobs = static_cast<int>(top);
  } else if (top > 0) {
    fields.problems().add(invalid_value("top_logprobs", "only allowed when 'logprobs' is true."));
  }
}

void read_template_kwargs(Fields& fields, CompletionRequest& request) {
  const Element* kwargs = fields.find_object("chat_template_kwargs");
  if (kwargs != nullptr) request.chat_template_kwargs = json_of(*kwargs);
  const std::optional<std::string_view> effort = fields.string("reasoning_effort");
  if (!effort) return;
  if (std::find(kEfforts.begin(), kEfforts.end(), *effort) == kEfforts.end()) {
    fields.problems().add(invalid_value(
        "reasoning_effort", "expected none, minimal, low, medium, high, xhigh or max."));
    return;
  }
  // Of equal keys the last counts, so that what the caller wrote itself wins.
  std::string merged = "{\"reasoning_effort\":";
  JsonWriter(merged).string(*effort);
  if (request.chat_template_kwargs.size() > 2) {
    merged += ',';
    merged.append(request.chat_template_kwargs, 1);
  } else {
    merged += '}';
  }
  request.chat_template_kwargs = std::move(merged);
}

}  // namespace

void read_template_fields(Fields& fields, const Limits& limits, CompletionRequest& request) {
  Problems& problems = fields.problems();
  const Element* messages = fields.find_array("messages");
  if (messages != nullptr) {
    read_messages(*messages, limits, request, problems);
  } else if (!problems.any()) {
    problems.add(missing_parameter("messages"));
  }
  read_tools(fields, limits, request);
  read_template_kwargs(fields, request);
  if (fields.find("chat_template") != nullptr) {
    problems.add(unsupported_parameter(
        "chat_template", "'chat_template' is not accepted: the model's own template is used."));
  }

  const std::optional<bool> generation = fields.boolean("add_generation_prompt");
  request.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  request.add_generation_prompt = generation.value_or(!request.continue_final_message);
  if (!request.continue_final_message) return;
  if (request.add_generation_prompt) {
    problems.add(invalid_value("continue_final_message",
                               "cannot be combined with 'add_generation_prompt'."));
  } else if (request.final_content.empty() && !problems.any()) {
    problems.add(invalid_value("continue_final_message", "the last message has no text."));
  }
}

void read_chat(Fields& fields, const Limits& limits, CompletionRequest& request) {
  Problems& problems = fields.problems();
  read_template_fields(fields, limits, request);
  read_chat_logprobs(fields, limits, request);

  const auto old_max = fields.integer("max_tokens", {1, kTokensMax});
  const auto max_tokens = fields.integer("max_completion_tokens", {1, kTokensMax});
  if (const std::optional<int64_t> wanted = max_tokens ? max_tokens : old_max) {
    request.max_tokens = static_cast<int>(*wanted);
    request.max_tokens_given = true;
  }
  for (const std::string_view name : {"functions", "function_call"}) {
    if (fields.find(name) != nullptr) {
      problems.add(unsupported_parameter(name, "'" + std::string(name) +
                                                   "' is no longer supported: use 'tools' and "
                                                   "'tool_choice'."));
    }
  }
  if (fields.boolean("echo").value_or(false))
    problems.add(unsupported_value("echo", "'echo' is only supported on /v1/completions."));
}

}  // namespace tandem::openai

// The body as a whole, and what only /v1/completions has.
#include <algorithm>
#include <utility>

#include "router/openai/parse_parts.h"

namespace tandem::openai {
namespace {

constexpr int64_t kTokensMax = INT32_MAX;
constexpr size_t kIgnoredNamesMax = 16;
constexpr int kCompletionTokensDefault = 16;

std::string item(std::string_view param, size_t index) {
  return std::string(param) + "[" + std::to_string(index) + "]";
}

void read_texts(simdjson::dom::array array, CompletionRequest& request, Problems& problems) {
  Texts texts;
  size_t index = 0;
  for (const Element element : array) {
    const std::string param = item("prompt", index++);
    if (!element.is_string()) {
      problems.add(invalid_type(param, "a string", type_name(element)));
      return;
    }
    texts.emplace_back(text_of(element));
    if (texts.back().empty())
      problems.add(
          invalid_value(param, "empty string. Expected a string of at least 1 character."));
  }
  request.prompts = std::move(texts);
}

void read_token_lists(simdjson::dom::array array, CompletionRequest& request, Problems& problems) {
  TokenLists lists;
  size_t index = 0;
  for (const Element element : array) {
    const std::string param = item("prompt", index++);
    if (!element.is_array()) {
      problems.add(invalid_type(param, "an array of integers", type_name(element)));
      return;
    }
    lists.push_back(read_token_ids(array_of(element), param, problems));
    if (lists.back().empty() && !problems.any()) problems.add(empty_array(param));
  }
  request.prompts = std::move(lists);
}

void read_prompt(Fields& fields, const Limits& limits, CompletionRequest& request) {
  Problems& problems = fields.problems();
  const Element* prompt = fields.find("prompt");
  if (prompt == nullptr || (prompt->is_string() && text_of(*prompt).empty())) {
    problems.add(missing_parameter("prompt"));
    return;
  }
  if (prompt->is_string()) {
    request.prompts = Texts{std::string(text_of(*prompt))};
    return;
  }
  if (!prompt->is_array()) {
    problems.add(invalid_type("prompt", "a string or an array", type_name(*prompt)));
    return;
  }
  const simdjson::dom::array array = array_of(*prompt);
  if (array.begin() == array.end()) {
    problems.add(empty_array("prompt"));
    return;
  }
  const Element first = *array.begin();
  if (first.is_string() || first.is_array()) {
    const size_t count = static_cast<size_t>(std::distance(array.begin(), array.end()));
    check_length_max(count, static_cast<size_t>(limits.prompts_max), "prompt", true, problems);
    if (count > static_cast<size_t>(limits.prompts_max)) return;
  }
  if (first.is_string()) {
    read_texts(array, request, problems);
  } else if (first.is_array()) {
    read_token_lists(array, request, problems);
  } else {
    request.prompts = TokenLists{read_token_ids(array, "prompt", problems)};
  }
}

void read_completion(Fields& fields, const Limits& limits, CompletionRequest& request) {
  Problems& problems = fields.problems();
  read_prompt(fields, limits, request);
  request.echo = fields.boolean("echo").value_or(false);
  const std::optional<int64_t> max_tokens =
      fields.integer("max_tokens", {request.echo ? 0 : 1, kTokensMax});
  request.max_tokens = static_cast<int>(max_tokens.value_or(kCompletionTokensDefault));
  request.max_tokens_given = max_tokens.has_value();
  if (const auto logprobs = fields.integer("logprobs", {0, limits.logprobs_max}))
    request.logprobs = static_cast<int>(*logprobs);
  if (request.echo && request.logprobs >= 0) {
    problems.add(unsupported_value(
        "echo",
        "'echo' together with 'logprobs' is not supported: log probabilities of prompt "
        "tokens are not available in this release."));
  }
  if (const auto best_of = fields.integer("best_of"); best_of && *best_of != request.n) {
    problems.add(unsupported_value("best_of",
                                   "'best_of' is only supported when it equals 'n' or is absent."));
  }
  if (const auto suffix = fields.string("suffix"); suffix && !suffix->empty())
    problems.add(unsupported_parameter("suffix", "'suffix' is not supported with this model."));
}

void note_unknown(const Fields& fields, const Limits& limits, CompletionRequest& request,
                  Problems& problems) {
  for (const std::string_view name : fields.unknown()) {
    ++request.ignored_count;
    if (request.ignored_fields.size() < kIgnoredNamesMax)
      request.ignored_fields.emplace_back(name.substr(0, 64));
    if (limits.strict) problems.add(unknown_parameter(name));
  }
}

}  // namespace

std::vector<TokenId> read_token_ids(simdjson::dom::array array, const std::string& param,
                                    Problems& problems) {
  std::vector<TokenId> ids;
  size_t index = 0;
  for (const Element element : array) {
    int64_t id = 0;
    Problems own;  // Its message would repeat the id.
    const std::optional<int64_t> read = read_integer(element, param, {0, INT32_MAX}, own);
    if (read) {
      id = *read;
    } else if (own.first().code == "invalid_type") {
      problems.add(invalid_type(item(param, index), "an integer", type_name(element)));
      return {};
    } else {
      problems.add(invalid_request(item(param, index), own.first().code,
                                   "Invalid '" + item(param, index) +
                                       "': token ids must be within the model's vocabulary."));
      return {};
    }
    ids.push_back(static_cast<TokenId>(id));
    ++index;
  }
  return ids;
}

Limits Limits::from(const RouterConfig& config) {
  Limits limits;
  limits.n_max = config.n_max;
  limits.prompts_max = config.prompts_max;
  return limits;
}

int CompletionRequest::prompt_count() const {
  if (kind == Kind::kChat) return 1;
  return static_cast<int>(std::visit([](const auto& list) { return list.size(); }, prompts));
}

Parsed<CompletionRequest> parse_completion(std::string_view body, Kind kind, const Limits& limits) {
  const Parsed<Document> document = Document::parse_object(body, limits.depth_max);
  if (!document.ok()) return document.error();
  Problems problems;
  Fields fields(object_of(document->root()), "", problems);

  CompletionRequest request;
  request.kind = kind;
  request.add_special_tokens = kind == Kind::kCompletion;
  read_common(fields, limits, request);
  if (kind == Kind::kChat) {
    read_chat(fields, limits, request);
  } else {
    read_completion(fields, limits, request);
  }
  refuse_unsupported(fields, limits, request);

  request.sampling.logprobs = request.logprobs;
  if (request.max_tokens && request.sampling.min_tokens > *request.max_tokens) {
    problems.add(invalid_request(
        "min_tokens", "integer_above_max_value",
        "Invalid 'min_tokens': integer above maximum value. Expected a value <= 'max_tokens' (" +
            std::to_string(*request.max_tokens) + "), but got " +
            std::to_string(request.sampling.min_tokens) + " instead."));
  }
  note_unknown(fields, limits, request, problems);
  if (problems.any()) return problems.first();
  return request;
}

}  // namespace tandem::openai

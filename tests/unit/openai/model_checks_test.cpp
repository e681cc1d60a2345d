// What is checked once the model is known: its name, its vocabulary, its context.
#include <doctest/doctest.h>

#include "router/openai/request.h"

namespace tandem::openai {
namespace {

constexpr ModelLimits kModel{.vocab = 100, .context = 8192, .token_bytes_max = 16};

CompletionRequest parsed(std::string_view body, Kind kind = Kind::kCompletion) {
  auto request = parse_completion(body, kind, {});
  REQUIRE(request.ok());
  return *request;
}
CompletionRequest chat(std::string_view fields) {
  return parsed(R"({"messages":[{"role":"user","content":"x"}])" + std::string(fields) + "}",
                Kind::kChat);
}

TEST_CASE("a model is found by name, or left out when there is one") {
  const std::string one[] = {"m"};
  const std::string two[] = {"m", "org/k"};
  CHECK(*resolve_model("", one) == "m");
  CHECK(*resolve_model("org/k", two) == "org/k");
  CHECK(resolve_model("", two).error().code == "missing_required_parameter");
  const ApiError unknown = resolve_model("x", one).error();
  CHECK(unknown.status == 404);
  CHECK(unknown.code == "model_not_found");
  CHECK(unknown.param == "model");
  CHECK(unknown.message == "The model `x` does not exist or you do not have access to it.");
}

TEST_CASE("content types are checked without their parameters") {
  CHECK_FALSE(check_content_type("application/json"));
  CHECK_FALSE(check_content_type(" Application/JSON ; charset=utf-8"));
  for (const char* type : {"", "text/plain", "application/jsonx", "multipart/form-data"})
    CHECK(check_content_type(type)->status == 415);
}

TEST_CASE("token ids beyond the vocabulary are refused without naming them") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"prompt":[1,100]})", "prompt"},
      {R"({"prompt":[[1],[2,429]]})", "prompt"},
      {R"({"prompt":"a","logit_bias":{"100":1}})", "logit_bias"},
      {R"({"prompt":"a","stop_token_ids":[100]})", "stop_token_ids"},
  };
  for (const auto& [body, param] : cases) {
    const auto error = validate_against_model(parsed(body), kModel);
    REQUIRE(error.has_value());
    CHECK(error->status == 400);
    CHECK(error->param == param);
    CHECK(error->message.find("429") == std::string::npos);
  }
  CHECK_FALSE(validate_against_model(parsed(R"({"prompt":[99],"stop_token_ids":[0]})"), kModel));
}

TEST_CASE("a prompt that cannot fit is refused before it is tokenised") {
  const std::string text(8193 * 16, 'x');
  const auto error = validate_against_model(parsed("{\"prompt\":\"" + text + "\"}"), kModel);
  REQUIRE(error.has_value());
  CHECK(error->code == "context_length_exceeded");
  CHECK(error->message ==
        "This model's maximum context length is 8192 tokens. However, your prompt resulted in at "
        "least "
        "8193 tokens. Please reduce the length of the prompt.");
  CHECK_FALSE(validate_against_model(
      parsed("{\"truncate_prompt_tokens\":5,\"prompt\":\"" + text + "\"}"), kModel));
}

TEST_CASE("the context's limit is reported in the words that clients search for") {
  const ApiError error = resolve_max_tokens(chat(R"(,"max_tokens":256)"), kModel, 8745).error();
  CHECK(error.message ==
        "This model's maximum context length is 8192 tokens. However, you requested 9001 tokens "
        "(8745 in "
        "the messages, 256 in the completion). Please reduce the length of the messages or "
        "completion.");
  CHECK(error.param == "messages");
  CHECK(error.code == "context_length_exceeded");
  CHECK(error.body().find(R"("n_prompt_tokens":8745,"n_ctx":8192)") != std::string::npos);
  CHECK(resolve_max_tokens(parsed(R"({"prompt":"a"})"), kModel, 9000).error().message ==
        "This model's maximum context length is 8192 tokens. However, your prompt resulted in 9000 "
        "tokens. "
        "Please reduce the length of the prompt.");
}

TEST_CASE("output is what was asked for, or what the context leaves") {
  CHECK(*resolve_max_tokens(chat(""), kModel, 8000) == 192);
  CHECK(*resolve_max_tokens(chat(R"(,"max_tokens":192)"), kModel, 8000) == 192);
  CHECK_FALSE(resolve_max_tokens(chat(R"(,"max_tokens":193)"), kModel, 8000).ok());
  CHECK_FALSE(resolve_max_tokens(chat(""), kModel, 8192).ok());
  CHECK(*resolve_max_tokens(chat(""), kModel, 8191) == 1);
  CHECK(*resolve_max_tokens(parsed(R"({"prompt":"a"})"), kModel, 8190) ==
        2);  // The default 16 shrinks
  CHECK(*resolve_max_tokens(parsed(R"({"prompt":"a","max_tokens":0,"echo":true})"), kModel, 8192) ==
        0);
  CHECK_FALSE(resolve_max_tokens(chat(R"(,"max_tokens":2147483647)"), kModel, 5).ok());
  CHECK(resolve_max_tokens(chat(""), kModel, 0).error().code == "invalid_value");
}

TEST_CASE("truncation keeps the end, or the beginning, of the prompt") {
  const auto truncated = [](std::string_view fields, int size) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < size; ++i) prompt.push_back(i);
    truncate_prompt(parsed("{\"prompt\":\"a\"" + std::string(fields) + "}"), kModel, prompt);
    return prompt;
  };
  CHECK(truncated("", 5).size() == 5);
  CHECK(truncated(R"(,"truncate_prompt_tokens":2)", 5) == std::vector<TokenId>{3, 4});
  CHECK(truncated(R"(,"truncate_prompt_tokens":2,"truncation_side":"right")", 5) ==
        std::vector<TokenId>{0, 1});
  CHECK(truncated(R"(,"truncate_prompt_tokens":-1,"max_tokens":192)", 9000).size() == 8000);
  const auto error =
      validate_against_model(parsed(R"({"prompt":"a","truncate_prompt_tokens":8193})"), kModel);
  CHECK(error->param == "truncate_prompt_tokens");
}

}  // namespace
}  // namespace tandem::openai

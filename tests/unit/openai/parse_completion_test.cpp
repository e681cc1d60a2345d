// Every field of /v1/completions: what is taken, and what is refused with which code and words.
#include <doctest/doctest.h>

#include <cmath>

#include "router/openai/request.h"

namespace tandem::openai {
namespace {

// `fields` beside a prompt.
std::string body(std::string_view fields) {
  return "{\"prompt\":\"hi\"" + (fields.empty() ? "" : "," + std::string(fields)) + "}";
}

CompletionRequest takes(std::string_view fields) {
  INFO(fields);
  auto parsed = parse_completion(body(fields), Kind::kCompletion, {});
  if (!parsed.ok()) FAIL(parsed.error().message);
  return *parsed;
}

ApiError fails_whole(std::string_view text) {
  INFO(text);
  const auto parsed = parse_completion(text, Kind::kCompletion, {});
  REQUIRE_FALSE(parsed.ok());
  CHECK(parsed.error().status == 400);
  CHECK(parsed.error().type == "invalid_request_error");
  return parsed.error();
}

TEST_CASE("defaults are those of the API") {
  const CompletionRequest request = takes("");
  CHECK(request.sampling == SamplingParams{});
  CHECK(request.max_tokens == 16);
  CHECK_FALSE(request.max_tokens_given);
  CHECK(request.n == 1);
  CHECK_FALSE(request.seed.has_value());
  CHECK(request.add_special_tokens);
  CHECK(request.skip_special_tokens);
  CHECK(request.logprobs == -1);
  CHECK_FALSE(request.stream);
}

struct Case {
  const char* fields;
  const char* param;
  const char* code;
};

TEST_CASE("each bad value is refused with its code and its field") {
  const Case cases[] = {
      {R"("model":5)", "model", "invalid_type"},
      {R"("frequency_penalty":-2.1)", "frequency_penalty", "decimal_below_min_value"},
      {R"("frequency_penalty":2.1)", "frequency_penalty", "decimal_above_max_value"},
      {R"("presence_penalty":-3)", "presence_penalty", "decimal_below_min_value"},
      {R"("presence_penalty":3)", "presence_penalty", "decimal_above_max_value"},
      {R"("presence_penalty":"1")", "presence_penalty", "invalid_type"},
      {R"("logit_bias":[[1,2]])", "logit_bias", "invalid_type"},
      {R"("logit_bias":{"a":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"1.0":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"-1":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"99999999999":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"1":"x"})", "logit_bias", "invalid_value"},
      {R"("n":0)", "n", "integer_below_min_value"},
      {R"("n":17)", "n", "integer_above_max_value"},
      {R"("n":18446744073709551615)", "n", "integer_above_max_value"},
      {R"("n":1e30)", "n", "integer_above_max_value"},
      {R"("n":"2")", "n", "invalid_type"},
      {R"("n":true)", "n", "invalid_type"},
      {R"("n":1.5)", "n", "invalid_type"},
      {R"("seed":"x")", "seed", "invalid_type"},
      {R"("seed":18446744073709551615)", "seed", "integer_above_max_value"},
      {R"("stop":"")", "stop", "invalid_value"},
      {R"("stop":["a",""])", "stop[1]", "invalid_value"},
      {R"("stop":["a",1])", "stop[1]", "invalid_type"},
      {R"("stop":1)", "stop", "invalid_type"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])", "stop",
       "array_above_max_length"},
      {R"("stream":"true")", "stream", "invalid_type"},
      {R"("stream":1)", "stream", "invalid_type"},
      {R"("stream_options":{"include_usage":true})", "stream_options", "invalid_value"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage",
       "invalid_type"},
      {R"("stream":true,"stream_options":5)", "stream_options", "invalid_type"},
      {R"("temperature":-0.1)", "temperature", "decimal_below_min_value"},
      {R"("temperature":200)", "temperature", "decimal_above_max_value"},
      {R"("temperature":"1")", "temperature", "invalid_type"},
      {R"("temperature":false)", "temperature", "invalid_type"},
      {R"("top_p":-0.1)", "top_p", "decimal_below_min_value"},
      {R"("top_p":1.1)", "top_p", "decimal_above_max_value"},
      {R"("top_k":-2)", "top_k", "integer_below_min_value"},
      {R"("min_p":1.5)", "min_p", "decimal_above_max_value"},
      {R"("min_p":-1)", "min_p", "decimal_below_min_value"},
      {R"("repetition_penalty":0)", "repetition_penalty", "decimal_below_min_value"},
      {R"("repeat_penalty":-1)", "repeat_penalty", "decimal_below_min_value"},
      {R"("min_tokens":-1)", "min_tokens", "integer_below_min_value"},
      {R"("min_tokens":17)", "min_tokens", "integer_above_max_value"},
      {R"("min_tokens":6,"max_tokens":5)", "min_tokens", "integer_above_max_value"},
      {R"("ignore_eos":1)", "ignore_eos", "invalid_type"},
      {R"("stop_token_ids":5)", "stop_token_ids", "invalid_type"},
      {R"("stop_token_ids":["5"])", "stop_token_ids[0]", "invalid_type"},
      {R"("stop_token_ids":[1,-5])", "stop_token_ids[1]", "integer_below_min_value"},
      {R"("include_stop_str_in_output":0)", "include_stop_str_in_output", "invalid_type"},
      {R"("skip_special_tokens":"no")", "skip_special_tokens", "invalid_type"},
      {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens", "invalid_value"},
      {R"("truncate_prompt_tokens":-2)", "truncate_prompt_tokens", "integer_below_min_value"},
      {R"("truncation_side":"up")", "truncation_side", "invalid_value"},
      {R"("allowed_token_ids":[1])", "allowed_token_ids", "unsupported_value"},
      {R"("bad_words":["x"])", "bad_words", "unsupported_value"},
      {R"("prompt_logprobs":1)", "prompt_logprobs", "unsupported_value"},
      {R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs", "invalid_value"},
      {R"("prompt_logprobs":21)", "prompt_logprobs", "integer_above_max_value"},
      {R"("priority":"high")", "priority", "invalid_type"},
      {R"("cache_salt":"")", "cache_salt", "invalid_value"},
      {R"("cache_salt":"a/b")", "cache_salt", "invalid_value"},
      {R"("cache_salt":"a\u0000b")", "cache_salt", "invalid_value"},
      {R"("stream_interval":0)", "stream_interval", "integer_below_min_value"},
      {R"("structured_outputs":{"regex":"a"})", "structured_outputs", "unsupported_value"},
      {R"("guided_json":{})", "guided_json", "unsupported_value"},
      {R"("guided_regex":"a")", "guided_regex", "unsupported_value"},
      {R"("grammar":"root ::= x")", "grammar", "unsupported_value"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})", "response_format",
       "unsupported_value"},
      {R"("response_format":{"type":"json_object"})", "response_format", "unsupported_value"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema",
       "missing_required_parameter"},
      {R"("response_format":{"type":"xml"})", "response_format.type", "invalid_value"},
      {R"("response_format":{})", "response_format.type", "missing_required_parameter"},
      {R"("response_format":"text")", "response_format", "invalid_type"},
      {R"("modalities":["text","audio"])", "modalities", "unsupported_value"},
      {R"("audio":{"voice":"x"})", "audio", "unsupported_parameter"},
      {R"("user":5)", "user", "invalid_type"},
      {R"("max_tokens":0)", "max_tokens", "integer_below_min_value"},
      {R"("max_tokens":-5)", "max_tokens", "integer_below_min_value"},
      {R"("max_tokens":-1,"echo":true)", "max_tokens", "integer_below_min_value"},
      {R"("max_tokens":3000000000)", "max_tokens", "integer_above_max_value"},
      {R"("max_tokens":"5")", "max_tokens", "invalid_type"},
      {R"("logprobs":21)", "logprobs", "integer_above_max_value"},
      {R"("logprobs":-1)", "logprobs", "integer_below_min_value"},
      {R"("logprobs":"2")", "logprobs", "invalid_type"},
      {R"("logprobs":true)", "logprobs", "invalid_type"},
      {R"("echo":true,"logprobs":1)", "echo", "unsupported_value"},
      {R"("best_of":2)", "best_of", "unsupported_value"},
      {R"("suffix":"x")", "suffix", "unsupported_parameter"},
      // Types come before ranges, whichever field comes first.
      {R"("temperature":200,"logprobs":"x")", "logprobs", "invalid_type"},
  };
  for (const Case& item : cases) {
    const ApiError error = fails_whole(body(item.fields));
    INFO(item.fields);
    CHECK(error.code == item.code);
    CHECK(error.param == item.param);
  }
}

TEST_CASE("messages are OpenAI's own") {
  CHECK(fails_whole(body(R"("temperature":200)")).message ==
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 200 "
        "instead.");
  CHECK(fails_whole(body(R"("n":"2")")).message ==
        "Invalid type for 'n': expected an integer, but got a string instead.");
  CHECK(fails_whole(body(R"("n":0)")).message ==
        "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.");
  CHECK(fails_whole("{}").message == "Missing required parameter: 'prompt'.");
  std::string many = R"("stop":["a")";
  for (int i = 1; i < 20; ++i) many += ",\"a\"";
  CHECK(
      fails_whole(body(many + "]")).message ==
      "Invalid 'stop': array too long. Expected an array with maximum length 16, but got an array "
      "with length 20 instead.");
  CHECK(fails_whole(body("\"stop\":\"" + std::string(1025, 'x') + "\"")).code ==
        "string_above_max_length");
}

TEST_CASE("each prompt form is taken, and each wrong one refused") {
  const Case cases[] = {
      {R"({})", "prompt", "missing_required_parameter"},
      {R"({"prompt":null})", "prompt", "missing_required_parameter"},
      {R"({"prompt":""})", "prompt", "missing_required_parameter"},
      {R"({"prompt":5})", "prompt", "invalid_type"},
      {R"({"prompt":{}})", "prompt", "invalid_type"},
      {R"({"prompt":[]})", "prompt", "empty_array"},
      {R"({"prompt":[[]]})", "prompt[0]", "empty_array"},
      {R"({"prompt":["a",""]})", "prompt[1]", "invalid_value"},
      {R"({"prompt":["a",1]})", "prompt[1]", "invalid_type"},
      {R"({"prompt":[1,"a"]})", "prompt[1]", "invalid_type"},
      {R"({"prompt":[[1],2]})", "prompt[1]", "invalid_type"},
      {R"({"prompt":[[1],["a"]]})", "prompt[1][0]", "invalid_type"},
      {R"({"prompt":[1,-7]})", "prompt[1]", "integer_below_min_value"},
      {R"({"prompt":[1,7.5]})", "prompt[1]", "invalid_type"},
      {R"({"prompt":[true]})", "prompt[0]", "invalid_type"},
  };
  for (const Case& item : cases) {
    const ApiError error = fails_whole(item.fields);
    INFO(item.fields);
    CHECK(error.code == item.code);
    CHECK(error.param == item.param);
  }
  const auto prompts = [](std::string_view text) {
    auto parsed = parse_completion(text, Kind::kCompletion, {});
    REQUIRE(parsed.ok());
    return parsed->prompts;
  };
  CHECK(std::get<Texts>(prompts(R"({"prompt":"a"})")) == Texts{"a"});
  CHECK(std::get<Texts>(prompts(R"({"prompt":["a","b"]})")) == Texts{"a", "b"});
  CHECK(std::get<TokenLists>(prompts(R"({"prompt":[1,2.0]})")) == TokenLists{{1, 2}});
  CHECK(std::get<TokenLists>(prompts(R"({"prompt":[[1],[2,3]]})")) == TokenLists{{1}, {2, 3}});
}

TEST_CASE("too many prompts are refused and token ids are never repeated in messages") {
  std::string many = "{\"prompt\":[\"a\"";
  for (int i = 0; i < 1024; ++i) many += ",\"a\"";
  CHECK(fails_whole(many + "]}").code == "array_above_max_length");
  CHECK(fails_whole(R"({"prompt":[429,-429]})").message.find("429") == std::string::npos);
  CHECK(fails_whole(R"({"prompt":[99999999999]})").message.find("9999") == std::string::npos);
}

TEST_CASE("good values arrive where they belong") {
  const CompletionRequest request = takes(
      R"("model":"m","temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,)"
      R"("repetition_penalty":1.1,)"
      R"("frequency_penalty":0.5,"presence_penalty":-0.5,"logit_bias":{"7":-200,"5":3},"seed":42,)"
      R"("n":2.0,"max_tokens":20,"min_tokens":5,"ignore_eos":true,"stop_token_ids":[9],)"
      R"("stop":["x"],)"
      R"("include_stop_str_in_output":true,"skip_special_tokens":false,"logprobs":3,"stream":true,)"
      R"("stream_options":{"include_usage":true,"continuous_usage_stats":true},"user":"u",)"
      R"("priority":-3,"request_id":"r","cache_salt":"s","add_special_tokens":false,)"
      R"("truncate_prompt_tokens":100,"return_token_ids":true,"return_tokens_as_token_ids":true,)"
      R"("best_of":2,"suffix":"","stream_interval":4)");
  SamplingParams expected;
  expected.temperature = 0.5;
  expected.top_p = 0.9;
  expected.top_k = 40;
  expected.min_p = 0.1;
  expected.repetition_penalty = 1.1;
  expected.frequency_penalty = 0.5;
  expected.presence_penalty = -0.5;
  expected.logit_bias = {{5, 3.0f}, {7, -100.0f}};
  expected.min_tokens = 5;
  expected.ignore_eos = true;
  expected.stop_tokens = {9};
  expected.logprobs = 3;
  CHECK(request.sampling == expected);
  CHECK(request.seed == 42);
  CHECK(request.n == 2);
  CHECK(request.max_tokens == 20);
  CHECK(request.max_tokens_given);
  CHECK(request.stop == std::vector<std::string>{"x"});
  CHECK(request.include_stop_str_in_output);
  CHECK_FALSE(request.skip_special_tokens);
  CHECK(request.logprobs == 3);
  CHECK(request.include_usage);
  CHECK(request.continuous_usage);
  CHECK(request.user == "u");
  CHECK(request.priority == -3);
  CHECK(request.request_id == "r");
  CHECK(request.cache_salt == "s");
  CHECK_FALSE(request.add_special_tokens);
  CHECK(request.truncate_prompt_tokens == 100);
  CHECK(request.return_token_ids);
  CHECK(request.tokens_as_token_ids);
  CHECK(request.stream_interval == 4);
  CHECK(request.ignored_count == 0);
}

TEST_CASE("special values have their meanings") {
  CHECK(takes(R"("temperature":0.001)").sampling.temperature == 0.01);
  CHECK(takes(R"("temperature":0)").sampling.temperature == 0);
  CHECK(takes(R"("top_p":0)").sampling.temperature == 0);
  CHECK(takes(R"("top_p":0)").sampling.top_p == 1);
  CHECK(takes(R"("top_k":-1)").sampling.top_k == 0);
  CHECK_FALSE(takes(R"("seed":-1)").seed.has_value());
  CHECK(takes(R"("seed":-9223372036854775808)").seed == INT64_MIN);
  CHECK(takes(R"("stop":[])").stop.empty());
  CHECK(takes(R"("stop":null)").stop.empty());
  CHECK(takes(R"("stream_options":{})").stream == false);
  CHECK(takes(R"("max_tokens":0,"echo":true)").max_tokens == 0);
  CHECK(takes(R"("repeat_penalty":1.3)").sampling.repetition_penalty == 1.3);
  CHECK(takes(R"("repeat_penalty":1.3,"repetition_penalty":1.2)").sampling.repetition_penalty ==
        1.2);
  CHECK(takes(R"("logprobs":0)").logprobs == 0);
  CHECK(takes(R"("kv_transfer_params":{"do_remote_decode":true})").ignored_count == 0);
  CHECK(takes(R"("temperature":0,"n":3)").n == 3);
  CHECK(takes(R"("structured_outputs":{},"allowed_token_ids":[],"response_format":{"type":"text"})")
            .n == 1);
}

TEST_CASE("an absent field and null are the same for every optional field") {
  for (const char* name : {"model",
                           "frequency_penalty",
                           "logit_bias",
                           "n",
                           "seed",
                           "stop",
                           "stream",
                           "stream_options",
                           "temperature",
                           "top_p",
                           "user",
                           "top_k",
                           "min_p",
                           "min_tokens",
                           "stop_token_ids",
                           "max_tokens",
                           "logprobs",
                           "echo",
                           "best_of",
                           "suffix",
                           "response_format",
                           "prompt_logprobs",
                           "priority",
                           "truncate_prompt_tokens",
                           "structured_outputs",
                           "modalities",
                           "guided_json",
                           "cache_salt"}) {
    CHECK(takes("\"" + std::string(name) + "\":null").sampling == SamplingParams{});
  }
}

}  // namespace
}  // namespace tandem::openai

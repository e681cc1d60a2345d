// Messages, tools and what else only a chat has; and the template's context made of them.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "router/openai/request.h"

namespace tandem::openai {
namespace {

using Json = nlohmann::ordered_json;

std::string body(std::string_view fields) {
  return R"({"messages":[{"role":"user","content":"hi"}])" +
         (fields.empty() ? "" : "," + std::string(fields)) + "}";
}

CompletionRequest takes_whole(std::string_view text) {
  INFO(text);
  auto parsed = parse_completion(text, Kind::kChat, {});
  if (!parsed.ok()) FAIL(parsed.error().message);
  return *parsed;
}
CompletionRequest takes(std::string_view fields) { return takes_whole(body(fields)); }

Json messages(std::string_view list) {
  return Json::parse(takes_whole("{\"messages\":" + std::string(list) + "}").messages);
}

struct Case {
  const char* fields;
  const char* param;
  const char* code;
};

void check_cases(std::span<const Case> cases, bool whole) {
  for (const Case& item : cases) {
    INFO(item.fields);
    const auto parsed = parse_completion(
        whole ? "{\"messages\":" + std::string(item.fields) + "}" : body(item.fields), Kind::kChat,
        {});
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().status == 400);
    CHECK(parsed.error().code == item.code);
    CHECK(parsed.error().param == item.param);
  }
}

TEST_CASE("bad messages are refused with the path to the fault") {
  const Case cases[] = {
      {"null", "messages", "missing_required_parameter"},
      {"\"hi\"", "messages", "invalid_type"},
      {"[]", "messages", "empty_array"},
      {"[5]", "messages[0]", "invalid_type"},
      {R"([{"content":"x"}])", "messages[0].role", "missing_required_parameter"},
      {R"([{"role":5,"content":"x"}])", "messages[0].role", "invalid_type"},
      {R"([{"role":"boss","content":"x"}])", "messages[0].role", "invalid_value"},
      {R"([{"role":"user"}])", "messages[0].content", "missing_required_parameter"},
      {R"([{"role":"user","content":null}])", "messages[0].content", "missing_required_parameter"},
      {R"([{"role":"assistant","content":null}])", "messages[0].content",
       "missing_required_parameter"},
      {R"([{"role":"user","content":5}])", "messages[0].content", "invalid_type"},
      {R"([{"role":"user","content":[]}])", "messages[0].content", "empty_array"},
      {R"([{"role":"user","content":["x"]}])", "messages[0].content[0]", "invalid_type"},
      {R"([{"role":"user","content":[{"text":"x"}]}])", "messages[0].content[0].type",
       "missing_required_parameter"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text",
       "missing_required_parameter"},
      {R"([{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url",)"
       R"("image_url":{"url":"u"}}]}])",
       "messages[0].content[1].type", "unsupported_value"},
      {R"([{"role":"user","content":[{"type":"input_audio"}]}])", "messages[0].content[0].type",
       "unsupported_value"},
      {R"([{"role":"user","content":[{"type":"refusal","refusal":"x"}]}])",
       "messages[0].content[0].type", "invalid_value"},
      {R"([{"role":"user","content":"a"},{"role":"tool","content":"x"}])",
       "messages[1].tool_call_id", "missing_required_parameter"},
      {R"([{"role":"tool","tool_call_id":5,"content":"x"}])", "messages[0].tool_call_id",
       "invalid_type"},
      {R"([{"role":"assistant","tool_calls":[{"id":"a"}]}])", "messages[0].tool_calls[0].function",
       "missing_required_parameter"},
      {R"([{"role":"assistant","tool_calls":[{"id":"a","function":{}}]}])",
       "messages[0].tool_calls[0].function.name", "missing_required_parameter"},
      {R"([{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":5}}]}])",
       "messages[0].tool_calls[0].function.arguments", "invalid_type"},
      {R"([{"role":"assistant","tool_calls":{}}])", "messages[0].tool_calls", "invalid_type"},
  };
  check_cases(cases, true);
}

TEST_CASE("bad chat fields are refused with their codes") {
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f"}}],)";
  const std::string required = tool + R"("tool_choice":"required")";
  const std::string named = tool + R"("tool_choice":{"type":"function","function":{"name":"f"}})";
  const std::string stranger =
      tool + R"("tool_choice":{"type":"function","function":{"name":"g"}})";
  const std::string odd = tool + R"("tool_choice":"maybe")";
  const Case cases[] = {
      {R"("max_tokens":0)", "max_tokens", "integer_below_min_value"},
      {R"("max_tokens":-1)", "max_tokens", "integer_below_min_value"},
      {R"("max_completion_tokens":0)", "max_completion_tokens", "integer_below_min_value"},
      {R"("logprobs":1)", "logprobs", "invalid_type"},
      {R"("logprobs":"x")", "logprobs", "invalid_type"},
      {R"("top_logprobs":2)", "top_logprobs", "invalid_value"},
      {R"("logprobs":false,"top_logprobs":2)", "top_logprobs", "invalid_value"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "integer_above_max_value"},
      {R"("logprobs":true,"top_logprobs":-1)", "top_logprobs", "integer_below_min_value"},
      {R"("tools":[])", "tools", "empty_array"},
      {R"("tools":{})", "tools", "invalid_type"},
      {R"("tools":[5])", "tools[0]", "invalid_type"},
      {R"("tools":[{"function":{"name":"f"}}])", "tools[0].type", "missing_required_parameter"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type", "unsupported_value"},
      {R"("tools":[{"type":"function"}])", "tools[0].function", "missing_required_parameter"},
      {R"("tools":[{"type":"function","function":{}}])", "tools[0].function.name",
       "missing_required_parameter"},
      {R"("tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name",
       "invalid_value"},
      {R"("tool_choice":"auto")", "tool_choice", "invalid_value"},
      {R"("tool_choice":5)", "tool_choice", "invalid_type"},
      {required.c_str(), "tool_choice", "unsupported_value"},
      {named.c_str(), "tool_choice", "unsupported_value"},
      {stranger.c_str(), "tool_choice", "invalid_value"},
      {odd.c_str(), "tool_choice", "invalid_value"},
      {R"("parallel_tool_calls":"no")", "parallel_tool_calls", "invalid_type"},
      {R"("functions":[])", "functions", "unsupported_parameter"},
      {R"("function_call":"auto")", "function_call", "unsupported_parameter"},
      {R"("reasoning_effort":"huge")", "reasoning_effort", "invalid_value"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs", "invalid_type"},
      {R"("chat_template":"{{ 1 }}")", "chat_template", "unsupported_parameter"},
      {R"("add_generation_prompt":true,"continue_final_message":true)", "continue_final_message",
       "invalid_value"},
      {R"("echo":true)", "echo", "unsupported_value"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema",
       "missing_required_parameter"},
      {R"("stream":true,"logprobs":true,"top_logprobs":30)", "top_logprobs",
       "integer_above_max_value"},
  };
  check_cases(cases, false);
}

TEST_CASE("chat defaults differ where the API says so") {
  const CompletionRequest request = takes("");
  CHECK_FALSE(request.max_tokens.has_value());
  CHECK_FALSE(request.add_special_tokens);
  CHECK(request.add_generation_prompt);
  CHECK(request.prompt_count() == 1);
  CHECK(request.logprobs == -1);
}

TEST_CASE("max_completion_tokens wins over max_tokens, logprobs true alone is fine") {
  CHECK(takes(R"("max_tokens":5,"max_completion_tokens":7)").max_tokens == 7);
  CHECK(takes(R"("max_tokens":5)").max_tokens == 5);
  CHECK(takes(R"("logprobs":true)").logprobs == 0);  // vllm 4795
  CHECK(takes(R"("logprobs":true,"top_logprobs":4)").sampling.logprobs == 4);
  CHECK(takes(R"("top_logprobs":0)").logprobs == -1);
}

TEST_CASE("messages become what templates expect") {
  CHECK(messages(R"([{"role":"developer","content":"a","cache_control":{}}])") ==
        Json::parse(R"([{"role":"system","content":"a"}])"));
  CHECK(
      messages(R"([{"role":"user","name":"n","content":[{"type":"text","text":"a"},{"type":"text",)"
               R"("text":"b"}]}])") ==
      Json::parse(R"([{"role":"user","content":"a\nb","name":"n"}])"));
  CHECK(messages(R"([{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}])") ==
        Json::parse(R"([{"role":"assistant","content":"no"}])"));
  CHECK(messages(R"([{"role":"assistant","tool_calls":[{"id":"c","type":"function",)"
                 R"("function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]}])")
            .dump() ==
        R"([{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f",)"
        R"("arguments":{"b":1,"a":2}}}],"content":""}])");
  CHECK(messages(
            R"([{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f",)"
            R"("arguments":{"a":2}}}]}])")
            .at(0)["tool_calls"][0]["function"]["arguments"] == Json::parse(R"({"a":2})"));
  CHECK(messages(R"([{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f",)"
                 R"("arguments":"not json"}}]}])")
            .at(0)["tool_calls"][0]["function"]["arguments"] == "not json");
  CHECK(messages(R"([{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f",)"
                 R"("arguments":""}}]}])")
            .at(0)["tool_calls"][0]["function"]["arguments"] == Json::object());
  CHECK(messages(R"([{"role":"tool","tool_call_id":"c","content":"r"}])") ==
        Json::parse(R"([{"role":"tool","content":"r","tool_call_id":"c"}])"));
  CHECK(messages(R"([{"role":"assistant","content":"x","tool_calls":[]}])") ==
        Json::parse(R"([{"role":"assistant","content":"x"}])"));
}

TEST_CASE("arguments nested too deeply stay text") {
  const std::string deep = std::string(5000, '[');
  const Json list = messages(
      R"([{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":")" +
      deep + R"("}}]}])");
  CHECK(list.at(0)["tool_calls"][0]["function"]["arguments"] == deep);
}

TEST_CASE("tools reach the template with their keys in the client's order") {
  const std::string tool =
      R"({"type":"function","function":{"name":"f","parameters":{"z":1,"a":{"y":2.5,"b":null}}}})";
  const std::string other = R"({"type":"function","function":{"name":"g"}})";
  CHECK(takes("\"tools\":[" + tool + "]").tools == "[" + tool + "]");
  CHECK(takes("\"tools\":[" + tool + "],\"tool_choice\":\"auto\"").tools == "[" + tool + "]");
  CHECK(takes("\"tools\":[" + tool + "],\"tool_choice\":\"none\"").tools.empty());
  CHECK(takes("\"tool_choice\":\"none\"").tools.empty());
  CHECK(
      takes("\"tools\":[" + tool + "," + other +
            R"(],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[)" +
            other + "]}}")
          .tools == "[" + other + "]");
}

TEST_CASE("the template's context holds messages, tools and arguments, and ours win") {
  const CompletionRequest request =
      takes(R"("chat_template_kwargs":{"enable_thinking":false,"messages":"mine"},)"
            R"("reasoning_effort":"low")");
  const Json context = Json::parse(build_template_context(request, "<s>", "</s>"));
  CHECK(context["messages"] == Json::parse(R"([{"role":"user","content":"hi"}])"));
  CHECK(context["tools"].is_null());
  CHECK(context["add_generation_prompt"] == true);
  CHECK(context["bos_token"] == "<s>");
  CHECK(context["eos_token"] == "</s>");
  CHECK(context["enable_thinking"] == false);
  CHECK(context["reasoning_effort"] == "low");
  CHECK(Json::parse(build_template_context(takes(R"("chat_template_kwargs":{})"), "",
                                           ""))["bos_token"] == "");
}

TEST_CASE("continue_final_message cuts behind the last message") {
  const auto finish = [](std::string_view content, std::string rendered) {
    auto parsed =
        parse_completion(R"({"messages":[{"role":"assistant","content":")" + std::string(content) +
                             R"("}],"continue_final_message":true})",
                         Kind::kChat, {});
    REQUIRE(parsed.ok());
    CHECK_FALSE(parsed->add_generation_prompt);
    return finish_prompt_text(*parsed, std::move(rendered));
  };
  CHECK(*finish("So it", "<a>So it</a>\n") == "<a>So it");
  CHECK(*finish("So it ", "<a>So it </a>\n") == "<a>So it ");
  CHECK(*finish(" So it ", "<a>So it</a>\n") == "<a>So it");
  CHECK(*finish("a", "<b>a</b><b>a</b>") == "<b>a</b><b>a");
  CHECK(finish("gone", "<a></a>").error().param == "continue_final_message");
  auto parsed = parse_completion(body(""), Kind::kChat, {});
  CHECK(*finish_prompt_text(*parsed, "x") == "x");
}

TEST_CASE("both forms of /tokenize are understood") {
  auto vllm = parse_tokenize(R"({"prompt":"a","return_token_strs":true})", {});
  REQUIRE(vllm.ok());
  CHECK(vllm->add_special);
  CHECK(vllm->with_strings);
  auto llama = parse_tokenize(R"({"content":"a","with_pieces":true,"parse_special":false})", {});
  REQUIRE(llama.ok());
  CHECK_FALSE(llama->add_special);
  CHECK(llama->with_pieces);
  CHECK_FALSE(llama->parse_special);
  auto chat = parse_tokenize(
      R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false})", {});
  REQUIRE(chat.ok());
  REQUIRE(chat->chat.has_value());
  CHECK_FALSE(chat->chat->add_generation_prompt);
  CHECK(parse_tokenize(R"({"prompt":""})", {}).ok());
  CHECK(parse_tokenize("{}", {}).error().code == "missing_required_parameter");
  CHECK(parse_tokenize(R"({"prompt":5})", {}).error().code == "invalid_type");
  CHECK(parse_tokenize("[", {}).error().code == "invalid_json");
}

TEST_CASE("/detokenize checks its ids") {
  CHECK(parse_detokenize(R"({"tokens":[1,2]})", {}, 10)->tokens == std::vector<TokenId>{1, 2});
  CHECK(parse_detokenize(R"({"tokens":[]})", {}, 10)->tokens.empty());
  CHECK(parse_detokenize(R"({"tokens":[10]})", {}, 10).error().param == "tokens");
  CHECK(parse_detokenize(R"({"tokens":[-1]})", {}, 10).error().status == 400);
  CHECK(parse_detokenize(R"({"tokens":"x"})", {}, 10).error().code == "invalid_type");
  CHECK(parse_detokenize("{}", {}, 10).error().code == "missing_required_parameter");
}

}  // namespace
}  // namespace tandem::openai

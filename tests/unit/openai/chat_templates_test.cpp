// A chat request through a model's template, from body to prompt text.
#include <doctest/doctest.h>

#include "router/openai/request.h"
#include "router/templates/template_renderer.h"

namespace tandem::openai {
namespace {

// The template of the default model, as its GGUF file holds it.
constexpr const char* kSmolLm2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}";

// Tools, arguments, dates and begin-of-text, in the ways that newer models use them.
constexpr const char* kWithTools = R"({{- bos_token }}
{%- if tools is not none and tools %}
{{- "tools: " }}
{%- for tool in tools %}
{{- tool.function.name ~ "=" ~ (tool | tojson) }}
{%- endfor %}
{%- endif %}
{%- for message in messages %}
{%- if message.role == "assistant" and message.tool_calls %}
{%- for call in message.tool_calls %}
{{- "call " ~ call.function.name }}
{%- for key, value in call.function.arguments.items() %}
{{- " " ~ key ~ "=" ~ value }}
{%- endfor %}
{%- endfor %}
{%- elif message.role == "tool" %}
{{- " result " ~ message.content ~ " for " ~ message.tool_call_id }}
{%- else %}
{{- "[" ~ message.role ~ "]" ~ (message.content | trim) }}
{%- endif %}
{%- endfor %}
{%- if not enable_thinking | default(true) %}{{- "<nothink>" }}{%- endif %})";

// One helper a test: others in this program count their processes.
class Prompts {
 public:
  Prompts() {
    auto options = templates::find_helper("");
    REQUIRE_MESSAGE(options.ok(), options.status().to_string());
    auto created = templates::TemplateRenderer::create(*options);
    REQUIRE_MESSAGE(created.ok(), created.status().to_string());
    renderer_ = std::move(*created);
  }

  std::string operator()(const char* source, std::string_view body) {
    auto request = parse_completion(body, Kind::kChat, {});
    if (!request.ok()) FAIL(request.error().message);
    Result<std::string> text = renderer_->render(
        source, build_template_context(*request, "<s>", "</s>"), std::chrono::seconds(20));
    REQUIRE_MESSAGE(text.ok(), text.status().to_string());
    auto finished = finish_prompt_text(*request, *text);
    if (!finished.ok()) FAIL(finished.error().message);
    return *finished;
  }

 private:
  std::unique_ptr<templates::TemplateRenderer> renderer_;
};

TEST_CASE("the default model's template gives its prompt") {
  Prompts prompt;
  CHECK(prompt(kSmolLm2, R"({"messages":[{"role":"user","content":"Hi \"é\" 😀"}]})") ==
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi \"é\" 😀<|im_end|>\n<|im_start|>assistant\n");
  CHECK(prompt(kSmolLm2,
               R"({"messages":[{"role":"developer","content":[{"type":"text","text":"Be brief."}]},
                   {"role":"user","content":"Hi"}],"add_generation_prompt":false})") ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

TEST_CASE("a final message is continued through the template") {
  Prompts prompt;
  CHECK(prompt(kSmolLm2,
               R"({"messages":[{"role":"system","content":"s"},{"role":"assistant","content":"So"}],
                             "continue_final_message":true})") ==
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>assistant\nSo");
}

TEST_CASE("tools, calls and arguments arrive in the template") {
  Prompts prompt;
  CHECK(prompt(kWithTools, R"({"messages":[{"role":"user","content":" q "},
      {"role":"assistant","tool_calls":[{"id":"c1","type":"function",
        "function":{"name":"f","arguments":"{\"z\":1,\"a\":\"b\"}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"42"}],
      "tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}],
      "chat_template_kwargs":{"enable_thinking":false}})") ==
        "<s>tools: f={\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": "
        "{\"z\": 1, "
        "\"a\": 2}}}[user]qcall f z=1 a=b result 42 for c1<nothink>");
}

}  // namespace
}  // namespace tandem::openai

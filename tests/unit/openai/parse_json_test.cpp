// Bodies that are no JSON, or too much of it, end in a clear 400.
#include <doctest/doctest.h>

#include <random>

#include "common/random.h"
#include "router/openai/request.h"

namespace tandem::openai {
namespace {

ApiError fails(std::string_view body) {
  const Parsed<CompletionRequest> parsed = parse_completion(body, Kind::kCompletion, {});
  REQUIRE_FALSE(parsed.ok());
  CHECK(parsed.error().status == 400);
  CHECK(parsed.error().type == "invalid_request_error");
  return parsed.error();
}

TEST_CASE("malformed and truncated bodies are invalid_json") {
  const std::string bodies[] = {
      "",
      "   ",
      "{",
      "{\"prompt\":\"a\"",
      "{\"prompt\":\"a\"}}",
      "{\"prompt\":\"a\"} x",
      "{'prompt':'a'}",
      "{\"prompt\":\"a\",}",
      "{\"prompt\":\"a\\q\"}",
      "{\"prompt\":\"a\nb\"}",
      "{\"prompt\":\"\xFF\xFE\"}",
      "{\"prompt\":\"\xED\xA0\x80\"}",
      "{\"prompt\":\"\\ud800\"}",
      "{\"prompt\":\"a\",\"temperature\":1e999}",
      "{\"prompt\":\"a\",\"temperature\":NaN}",
      "{\"prompt\":\"a\",\"n\":01}",
      std::string("{\"prompt\":\"a\0\"}", 14),
  };
  for (const std::string& body : bodies) CHECK(fails(body).code == "invalid_json");
}

TEST_CASE("a body that is no object is an invalid type") {
  for (const char* body : {"[]", "\"a\"", "1", "null", "true"})
    CHECK(fails(body).code == "invalid_type");
}

TEST_CASE("nesting of 100,000 levels is refused, not followed") {
  const std::string deep(100'000, '[');
  CHECK(fails("{\"prompt\":" + deep).code == "invalid_json");
  CHECK(fails("{\"prompt\":" + deep + std::string(100'000, ']') + "}").code == "invalid_json");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  CHECK(fails(objects).code == "invalid_json");
}

TEST_CASE("of fields with equal names the last counts, and null is absent") {
  auto parsed =
      parse_completion(R"({"prompt":"a","prompt":"b","n":2,"n":null})", Kind::kCompletion, {});
  REQUIRE(parsed.ok());
  CHECK(std::get<Texts>(parsed->prompts).front() == "b");
  CHECK(parsed->n == 1);
}

TEST_CASE("a text with NUL, emoji and escapes arrives unchanged") {
  const char* body = R"({"prompt":"a\u0000\ud83d\ude00\n\"é"})";
  auto parsed = parse_completion(body, Kind::kCompletion, {});
  REQUIRE(parsed.ok());
  CHECK(std::get<Texts>(parsed->prompts).front() ==
        std::string("a\0\xF0\x9F\x98\x80\n\"\xC3\xA9", 10));
}

TEST_CASE("bodies of many megabytes are parsed") {
  const std::string text(20 << 20, 'x');
  auto parsed = parse_completion("{\"prompt\":\"" + text + "\"}", Kind::kCompletion, {});
  REQUIRE(parsed.ok());
  CHECK(std::get<Texts>(parsed->prompts).front() == text);
}

TEST_CASE("unknown fields are ignored and named, or refused in strict mode") {
  const char* body = R"({"prompt":"a","chat_id":1,"zeta":{},"metadata":{}})";
  auto parsed = parse_completion(body, Kind::kCompletion, {});
  REQUIRE(parsed.ok());
  CHECK(parsed->ignored_count == 2);
  CHECK(parsed->ignored_fields == std::vector<std::string>{"chat_id", "zeta"});
  Limits strict;
  strict.strict = true;
  auto refused = parse_completion(body, Kind::kCompletion, strict);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == "unknown_parameter");
  CHECK(refused.error().message == "Unknown parameter: 'chat_id'.");
}

TEST_CASE("damaged bodies never crash the parser") {
  const uint64_t seed = seed_from_environment();
  INFO("TANDEM_SEED=" << seed);
  std::mt19937_64 random(seed);
  const std::string chat =
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]},)"
      R"({"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f",)"
      R"("arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"c","content":"x"}],)"
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"a":[1,2.5e3]}}}],)"
      R"("logit_bias":{"5":-1},"stop":["a","b"],"stream":true,)"
      R"("stream_options":{"include_usage":true}})";
  REQUIRE(parse_completion(chat, Kind::kChat, {}).ok());
  for (int round = 0; round < 20'000; ++round) {
    std::string body = chat;
    for (size_t i = 1 + random() % 4; i > 0; --i) {
      const size_t at = random() % body.size();
      switch (random() % 3) {
        case 0:
          body[at] = static_cast<char>(random());
          break;
        case 1:
          body.erase(at, 1 + random() % 8);
          break;
        default:
          body.insert(at, body.substr(random() % body.size(), random() % 12));
      }
      if (body.empty()) body = "{";
    }
    for (const Kind kind : {Kind::kChat, Kind::kCompletion}) {
      const auto parsed = parse_completion(body, kind, {});
      if (!parsed.ok()) REQUIRE(parsed.error().status == 400);
    }
  }
}

}  // namespace
}  // namespace tandem::openai

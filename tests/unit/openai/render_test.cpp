// Bodies and stream frames, compared with what the official clients read.
#include "router/openai/render.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "router/openai/json_writer.h"
#include "tests/unit/openai/fake_tokenizer.h"

namespace tandem::openai {
namespace {

using Json = nlohmann::ordered_json;

ResponseMeta meta(Kind kind) {
  ResponseMeta meta;
  meta.kind = kind;
  meta.id = "id-1";
  meta.created = 1700000000;
  meta.model = "m";
  meta.fingerprint = "fp_0123456789";
  return meta;
}

// The JSON of each frame; the literal [DONE] as a string. Checks the framing byte by byte.
std::vector<Json> frames(const std::string& bytes) {
  std::vector<Json> list;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = bytes.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    const std::string line = bytes.substr(at, end - at);
    REQUIRE(line.starts_with("data: "));
    REQUIRE(line.find_first_of("\r\n") == std::string::npos);
    list.push_back(line == "data: [DONE]" ? Json("[DONE]") : Json::parse(line.substr(6)));
    at = end + 2;
  }
  return list;
}

TextDelta text(std::string_view content) {
  TextDelta delta;
  delta.text = content;
  return delta;
}

TextDelta last(std::string_view content, Finish finish = Finish::kStop) {
  TextDelta delta = text(content);
  delta.finish = finish;
  return delta;
}

LogprobEntry entry(TokenId token, std::string bytes, float logprob, size_t offset,
                   std::vector<TopEntry> top = {}) {
  LogprobEntry made;
  made.token = token;
  made.bytes = std::move(bytes);
  made.logprob = logprob;
  made.text_offset = offset;
  made.top = std::move(top);
  return made;
}

TEST_CASE("a chat stream is role, text, empty delta with the finish, done") {
  StreamRenderer stream(meta(Kind::kChat), 1);
  CHECK(stream.start(0, {}, {}) ==
        R"(data: {"id":"id-1","object":"chat.completion.chunk","created":1700000000,"model":"m",)"
        R"("system_fingerprint":"fp_0123456789","choices":[{"index":0,"delta":{"role":"assistant",)"
        R"("content":""},"logprobs":null,"finish_reason":null}]})"
        "\n\n");
  const auto middle = frames(stream.delta(0, text("Hi"), {}));
  REQUIRE(middle.size() == 1);
  CHECK(middle[0]["choices"] ==
        Json::parse(
            R"([{"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}])"));
  CHECK_FALSE(middle[0].contains("usage"));
  CHECK(stream.delta(0, {}, {}).empty());
  const auto end = frames(stream.delta(0, last("!"), {}));
  REQUIRE(end.size() == 2);
  CHECK(end[0]["choices"][0]["delta"]["content"] == "!");
  CHECK(end[0]["choices"][0]["finish_reason"].is_null());
  CHECK(
      end[1]["choices"] ==
      Json::parse(
          R"([{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}])"));
  CHECK(stream.finish({}) == "data: [DONE]\n\n");
}

TEST_CASE("wanted usage is null in each chunk, then one chunk without choices") {
  ResponseMeta wanted = meta(Kind::kChat);
  wanted.include_usage = true;
  StreamRenderer stream(wanted, 1);
  CHECK(frames(stream.start(0, {}, {}))[0]["usage"].is_null());
  CHECK(frames(stream.start(0, {}, {}))[0].contains("usage"));
  CHECK(frames(stream.delta(0, last("x"), {}))[1].contains("usage"));
  const auto end = frames(stream.finish({10, 3, 4}));
  REQUIRE(end.size() == 2);
  CHECK(end[0]["choices"] == Json::array());
  CHECK(end[0]["usage"] ==
        Json::parse(R"({"prompt_tokens":10,"completion_tokens":3,"total_tokens":13,)"
                    R"("prompt_tokens_details":{"cached_tokens":4},)"
                    R"("completion_tokens_details":{"reasoning_tokens":0}})"));
  CHECK(end[1] == "[DONE]");
}

TEST_CASE("continuous usage counts in every chunk") {
  ResponseMeta wanted = meta(Kind::kCompletion);
  wanted.include_usage = wanted.continuous_usage = true;
  StreamRenderer stream(wanted, 1);
  stream.start(0, {}, {});
  CHECK(frames(stream.delta(0, text("x"), {7, 2, 0}))[0]["usage"]["total_tokens"] == 9);
}

TEST_CASE("a completion stream finishes in its last text chunk") {
  StreamRenderer stream(meta(Kind::kCompletion), 2);
  CHECK(stream.start(0, {}, {}).empty());
  CHECK(stream.delta(1, text("a"), {}) ==
        R"(data: {"id":"id-1","object":"text_completion","created":1700000000,"model":"m",)"
        R"("system_fingerprint":"fp_0123456789","choices":[{"index":1,"text":"a","logprobs":null,)"
        R"("finish_reason":null}]})"
        "\n\n");
  TextDelta end = last("b", Finish::kLength);
  const auto list = frames(stream.delta(1, end, {}));
  REQUIRE(list.size() == 1);
  CHECK(list[0]["choices"][0]["text"] == "b");
  CHECK(list[0]["choices"][0]["finish_reason"] == "length");
}

TEST_CASE("echo opens a completion and shifts its offsets by code points") {
  ResponseMeta wanted = meta(Kind::kCompletion);
  wanted.logprobs = 0;
  StreamRenderer stream(wanted, 1);
  CHECK(frames(stream.start(0, {"h\xC3\xA9y", {}}, {}))[0]["choices"][0]["text"] == "h\xC3\xA9y");
  TextDelta delta = text("x");
  delta.logprobs.push_back(entry(1, "x", -0.5f, 0));
  const auto list = frames(stream.delta(0, delta, {}));
  CHECK(list[0]["choices"][0]["logprobs"]["text_offset"] == Json::parse("[3]"));
}

TEST_CASE("stop reasons name the stop string or the token") {
  StreamRenderer stream(meta(Kind::kCompletion), 1);
  TextDelta by_text = last("");
  by_text.stop_reason = std::string("END");
  CHECK(frames(stream.delta(0, by_text, {}))[0]["choices"][0]["stop_reason"] == "END");
  TextDelta by_token = last("");
  by_token.stop_reason = TokenId{7};
  CHECK(frames(stream.delta(0, by_token, {}))[0]["choices"][0]["stop_reason"] == 7);
}

TEST_CASE("chat logprobs carry bytes and exactly the wanted alternatives") {
  ResponseMeta wanted = meta(Kind::kChat);
  wanted.logprobs = 2;
  StreamRenderer stream(wanted, 1);
  TextDelta delta = text("He");
  delta.logprobs.push_back(entry(1, "He", -0.25f, 0, {{1, -0.25f, "He"}, {2, -1.5f, "\xE2\x82"}}));
  const auto list = frames(stream.delta(0, delta, {}));
  CHECK(list[0]["choices"][0]["logprobs"] ==
        Json::parse(R"({"content":[{"token":"He","logprob":-0.25,"bytes":[72,101],"top_logprobs":[)"
                    R"({"token":"He","logprob":-0.25,"bytes":[72,101]},)"
                    R"({"token":"\ufffd","logprob":-1.5,"bytes":[226,130]}]}],"refusal":null})"));
}

TEST_CASE("completion logprobs map alternatives and the chosen token, the larger of equal names") {
  ResponseMeta wanted = meta(Kind::kCompletion);
  wanted.logprobs = 2;
  BodyRenderer body(wanted, 1);
  TextDelta delta = last("cd");
  delta.logprobs.push_back(entry(9, "c", -3.1f, 0, {{1, -0.5f, "a"}, {2, -0.75f, "a"}}));
  delta.logprobs.push_back(entry(1, "d", 0.0f, 1, {{1, 0.0f, "d"}, {3, -9999.0f, "e"}}));
  body.delta(0, delta);
  const Json out = Json::parse(body.body({}));
  CHECK(out["choices"][0]["logprobs"] ==
        Json::parse(
            R"({"tokens":["c","d"],"token_logprobs":[-3.1,0.0],)"
            R"("top_logprobs":[{"a":-0.5,"c":-3.1},{"d":0.0,"e":-9999.0}],"text_offset":[0,1]})"));
}

TEST_CASE("hidden tokens have an empty name and their real bytes") {
  ResponseMeta wanted = meta(Kind::kChat);
  wanted.logprobs = 0;
  BodyRenderer body(wanted, 1);
  TextDelta delta = last("a");
  delta.logprobs.push_back(entry(1, "a", -0.5f, 0));
  delta.logprobs.push_back(entry(2, "<e>", -0.1f, 1));
  delta.logprobs.back().hidden = true;
  body.delta(0, delta);
  const Json content = Json::parse(body.body({}))["choices"][0]["logprobs"]["content"];
  CHECK(content[1]["token"] == "");
  CHECK(content[1]["bytes"] == Json::parse("[60,101,62]"));
  CHECK(content[0]["top_logprobs"] == Json::array());
}

TEST_CASE("tokens can be shown by id") {
  ResponseMeta wanted = meta(Kind::kCompletion);
  wanted.logprobs = 0;
  wanted.tokens_as_token_ids = true;
  BodyRenderer body(wanted, 1);
  TextDelta delta = last("a");
  delta.logprobs.push_back(entry(123, "a", -0.5f, 0));
  body.delta(0, delta);
  const Json logprobs = Json::parse(body.body({}))["choices"][0]["logprobs"];
  CHECK(logprobs["tokens"][0] == "token_id:123");
  CHECK(logprobs["top_logprobs"][0] == Json::parse(R"({"token_id:123":-0.5})"));
}

TEST_CASE("a chat body has the fields that SDKs need") {
  BodyRenderer body(meta(Kind::kChat), 2);
  body.start(0, {});
  body.delta(0, text("Hel"));
  body.delta(0, last("lo"));
  body.delta(1, last("x", Finish::kLength));
  CHECK(
      body.body({5, 4, 0}) ==
      R"({"id":"id-1","object":"chat.completion","created":1700000000,"model":"m",)"
      R"("system_fingerprint":"fp_0123456789","choices":[{"index":0,"message":{"role":"assistant",)"
      R"("content":"Hello","refusal":null},"logprobs":null,"finish_reason":"stop",)"
      R"("stop_reason":null},)"
      R"({"index":1,"message":{"role":"assistant","content":"x","refusal":null},"logprobs":null,)"
      R"("finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":5,)"
      R"("completion_tokens":4,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":0},)"
      R"("completion_tokens_details":{"reasoning_tokens":0}}})");
}

TEST_CASE("a completion body echoes the prompt and returns token ids where wanted") {
  ResponseMeta wanted = meta(Kind::kCompletion);
  wanted.return_token_ids = true;
  const TokenId prompt[] = {1, 2};
  BodyRenderer body(wanted, 1);
  body.start(0, {"ab", prompt});
  TextDelta delta = last("c");
  delta.token_ids = {3};
  body.delta(0, delta);
  const Json choice = Json::parse(body.body({}))["choices"][0];
  CHECK(choice["text"] == "abc");
  CHECK(choice["prompt_token_ids"] == Json::parse("[1,2]"));
  CHECK(choice["token_ids"] == Json::parse("[3]"));
}

TEST_CASE("prompt token ids are streamed once") {
  const TokenId prompt[] = {1, 2};
  for (const Kind kind : {Kind::kChat, Kind::kCompletion}) {
    ResponseMeta wanted = meta(kind);
    wanted.return_token_ids = true;
    StreamRenderer stream(wanted, 1);
    TextDelta delta = text("c");
    delta.token_ids = {3};
    std::string bytes = stream.start(0, {"", prompt}, {});
    bytes += stream.delta(0, delta, {});
    bytes += stream.delta(0, delta, {});
    size_t count = 0;
    for (size_t at = 0; (at = bytes.find("prompt_token_ids", at)) != bytes.npos; ++at) ++count;
    CHECK(count == 1);
    CHECK(bytes.find("\"token_ids\":[3]") != bytes.npos);
  }
}

TEST_CASE("stream_interval gathers tokens, but not the first and the last") {
  ResponseMeta wanted = meta(Kind::kCompletion);
  wanted.stream_interval = 3;
  StreamRenderer stream(wanted, 1);
  std::vector<size_t> counts;
  std::string all;
  for (const char* piece : {"a", "b", "c", "d", "e"}) {
    const auto list = frames(stream.delta(0, text(piece), {}));
    counts.push_back(list.size());
    for (const Json& frame : list) all += frame["choices"][0]["text"];
  }
  for (const Json& frame : frames(stream.delta(0, last("f"), {})))
    all += frame["choices"][0]["text"];
  CHECK(counts == std::vector<size_t>{1, 0, 0, 1, 0});
  CHECK(all == "abcdef");
}

TEST_CASE("what an interrupted stream held back leaves at once") {
  ResponseMeta wanted = meta(Kind::kChat);
  wanted.stream_interval = 100;
  StreamRenderer stream(wanted, 1);
  stream.delta(0, text("a"), {});
  CHECK(stream.delta(0, text("b"), {}).empty());
  TextDelta rest = text("c");
  rest.broken_off = true;
  const auto list = frames(stream.delta(0, rest, {}));
  REQUIRE(list.size() == 1);
  CHECK(list[0]["choices"][0]["delta"]["content"] == "bc");
}

TEST_CASE("an error in a stream is one frame with a string code, then done") {
  const auto list = frames(StreamRenderer::error(worker_lost()));
  REQUIRE(list.size() == 2);
  CHECK(list[0]["error"]["code"] == "worker_lost");
  CHECK(list[1] == "[DONE]");
  CHECK(StreamRenderer::keep_alive() == ": keep-alive\n");
}

TEST_CASE("strings stay on one line and valid whatever they hold") {
  std::string out;
  JsonWriter(out).string("a\"\\\n\r\t\x01\xE2\x80\xA8\xC2\x85\xFF\xC3\xA9\x7F");
  CHECK(out == "\"a\\\"\\\\\\n\\r\\t\\u0001\\u2028\\u0085\xEF\xBF\xBD\xC3\xA9\x7F\"");
  CHECK(Json::parse(out).is_string());
}

TEST_CASE("equal numbers are equal text, and finite") {
  const auto shown = [](float value) {
    std::string out;
    JsonWriter(out).number(value);
    return out;
  };
  CHECK(shown(-0.1f) == "-0.1");
  CHECK(shown(-0.0f) == "0.0");
  CHECK(shown(-9999.0f) == "-9999.0");
  CHECK(shown(-1.5e-20f) == "-1.5e-20");
  CHECK(shown(-INFINITY) == "-9999.0");
  CHECK(shown(NAN) == "-9999.0");
}

TEST_CASE("models, tokens and identifiers have their forms") {
  const ModelCard cards[] = {{"org/m", 1700000000, 4096}};
  CHECK(models_body(cards) ==
        R"({"object":"list","data":[{"id":"org/m","object":"model","created":1700000000,)"
        R"("owned_by":"tandem","root":"org/m","parent":null,"max_model_len":4096,)"
        R"("permission":[]}]})");
  const FakeTokenizer tokenizer({"hi"});
  const TokenId tokens[] = {256, 0xE2};
  TokenizeRequest request;
  CHECK(tokenize_body(request, tokens, tokenizer, 4096) ==
        R"({"count":2,"max_model_len":4096,"tokens":[256,226]})");
  request.with_pieces = true;
  request.with_strings = true;
  CHECK(Json::parse(tokenize_body(request, tokens, tokenizer, 4096)) ==
        Json::parse(R"({"count":2,"max_model_len":4096,"tokens":[{"id":256,"piece":"hi"},)"
                    R"({"id":226,"piece":[226]}],"token_strs":["hi","\ufffd"]})"));
  CHECK(detokenize_body("x") == R"({"prompt":"x","content":"x"})");
  CHECK(make_id(Kind::kChat).size() == 33);
  CHECK(make_id(Kind::kChat) != make_id(Kind::kChat));
  CHECK(make_fingerprint("a", "b", "c") == make_fingerprint("a", "b", "c"));
  CHECK(make_fingerprint("a", "b", "c") != make_fingerprint("ab", "", "c"));
  CHECK(make_fingerprint("a", "b", "c").size() == 13);
}

}  // namespace
}  // namespace tandem::openai

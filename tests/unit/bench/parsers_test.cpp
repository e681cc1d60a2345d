// The incremental parsers give the same result for every split of their input.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "bench/completion_event.h"
#include "bench/http_client.h"
#include "bench/http_parser.h"
#include "bench/sse_parser.h"

namespace tandem::bench {
namespace {

std::vector<std::string> events_of(const std::string& bytes, size_t first, size_t second) {
  SseParser parser;
  std::vector<std::string> events;
  const auto keep = [&](std::string_view data) { events.emplace_back(data); };
  CHECK(parser.feed(std::string_view(bytes).substr(0, first), keep).ok());
  CHECK(parser.feed(std::string_view(bytes).substr(first, second - first), keep).ok());
  CHECK(parser.feed(std::string_view(bytes).substr(second), keep).ok());
  return events;
}

struct Response {
  Status status;
  std::string body;
  int code = 0;
  bool done = false;
};

Response response_of(const std::string& bytes, size_t split) {
  HttpResponseParser parser;
  Response response;
  const auto keep = [&](std::string_view piece) { response.body += piece; };
  response.status = parser.feed(std::string_view(bytes).substr(0, split), keep);
  if (response.status.ok())
    response.status = parser.feed(std::string_view(bytes).substr(split), keep);
  if (response.status.ok()) response.status = parser.finish();
  response.code = parser.status_code();
  response.done = parser.done();
  return response;
}

TEST_CASE("events come out whole at any two splits and with any line end") {
  const std::string bytes =
      "data: one\n\n: comment\ndata:two\r\n\r\nevent: e\nid: 1\nretry: 5\ndata: three\ndata:  "
      "more\n\n"
      "data\rdata: x\r\r: only a comment\n\ndata: last\r\n\n";
  const std::vector<std::string> expected{"one", "two", "three\n more", "\nx", "last"};
  for (size_t first = 0; first <= bytes.size(); ++first)
    for (size_t second = first; second <= bytes.size(); ++second)
      REQUIRE(events_of(bytes, first, second) == expected);
}

TEST_CASE("an event without its blank line is not delivered") {
  CHECK(events_of("data: whole\n\ndata: half\n", 3, 9) == std::vector<std::string>{"whole"});
}

TEST_CASE("an endless event is refused") {
  SseParser parser;
  const std::string piece(1u << 20, 'x');
  Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) status = parser.feed(piece, [](std::string_view) {});
  CHECK(status.code() == ErrorCode::kResourceExhausted);
}

TEST_CASE("chunked, counted and open-ended bodies parse at every split") {
  const std::vector<std::string> responses{
      "HTTP/1.1 200 OK\r\ntransfer-ENCODING: Chunked\r\n\r\n5\r\nhello\r\n6;ext=1\r\n "
      "world\r\n0\r\nTrailer: x\r\n\r\n",
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length:11\r\n\r\nhello world",
      "HTTP/1.0 200 OK\nServer: old\n\nhello world"};
  for (const std::string& bytes : responses) {
    for (size_t split = 0; split <= bytes.size(); ++split) {
      const Response response = response_of(bytes, split);
      REQUIRE(response.status.ok());
      REQUIRE(response.body == "hello world");
      REQUIRE(response.code == 200);
      REQUIRE(response.done);
    }
  }
}

TEST_CASE("an empty body ends with the header") {
  CHECK(response_of("HTTP/1.1 204 No Content\r\n\r\n", 5).done);
  CHECK(response_of("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 5).done);
}

TEST_CASE("what is no HTTP is refused") {
  CHECK_FALSE(response_of("garbage\r\n\r\n", 3).status.ok());
  CHECK_FALSE(response_of("HTTP/1.1 abc\r\n\r\n", 3).status.ok());
  CHECK_FALSE(response_of("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", 3).status.ok());
  CHECK_FALSE(
      response_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 3).status.ok());
  CHECK_FALSE(response_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabX\r\n", 3)
                  .status.ok());
  CHECK_FALSE(response_of("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", 3).status.ok());
  CHECK_FALSE(response_of("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", 3).status.ok());
  HttpResponseParser endless;
  CHECK_FALSE(endless.feed(std::string(300'000, 'x'), [](std::string_view) {}).ok());
}

TEST_CASE("frames say what they carry") {
  CompletionEventParser parser;
  CHECK(parser.parse("[DONE]").done);
  const auto text =
      parser.parse(R"({"choices":[{"index":0,"text":" hi","finish_reason":null}],"usage":null})");
  CHECK(text.content);
  CHECK_FALSE(text.finished);
  CHECK(text.text == " hi");
  // An empty text that ends nothing stands for a token without text; one that ends the answer does
  // not.
  CHECK(parser.parse(R"({"choices":[{"text":"","finish_reason":null}]})").content);
  const auto end = parser.parse(R"({"choices":[{"text":"","finish_reason":"length"}]})");
  CHECK(end.finished);
  CHECK_FALSE(end.content);
  CHECK(parser.parse(R"({"choices":[{"text":"z","finish_reason":"stop"}]})").content);
  CHECK_FALSE(parser.parse(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})").content);
  CHECK(parser.parse(R"({"choices":[{"delta":{"role":"assistant","content":"a"}}]})").content);
  CHECK(parser.parse(R"({"choices":[{"delta":{"reasoning_content":"hm"}}]})").content);
  const auto usage =
      parser.parse(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}})");
  CHECK(usage.prompt_tokens == 7);
  CHECK(usage.completion_tokens == 9);
  CHECK(parser.parse(R"({"error":{"message":"no"}})").error == "error frame: no");
  CHECK(parser.parse(R"({"error":"plain"})").error == "error frame: plain");
  CHECK_FALSE(parser.parse("{broken").error.empty());
  CHECK_FALSE(parser.parse("[1]").error.empty());
}

TEST_CASE("addresses are understood or refused") {
  const auto plain = parse_url("http://example.org:8080/v1/");
  REQUIRE(plain.ok());
  CHECK(plain->host == "example.org");
  CHECK(plain->port == "8080");
  CHECK(plain->path.empty());
  CHECK(parse_url("127.0.0.1:90/prefix").value().path == "/prefix");
  CHECK(parse_url("http://[::1]:8080").value().host == "::1");
  CHECK(parse_url("http://[::1]:8080").value().host_port() == "[::1]:8080");
  CHECK(parse_url("http://host").value().port == "80");
  CHECK_FALSE(parse_url("https://host").ok());
  CHECK_FALSE(parse_url("http://:80").ok());
  CHECK_FALSE(parse_url("http://host:eighty").ok());
}

}  // namespace
}  // namespace tandem::bench

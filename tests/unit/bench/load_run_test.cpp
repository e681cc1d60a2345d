// The load generator against a scripted server: what counts as success and failure, and that every
// run ends.
#include "bench/load_run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>

#include "bench/run_result.h"
#include "bench/server_setup.h"
#include "tests/unit/bench/scripted_server.h"

namespace tandem::bench {
namespace {

using std::chrono::milliseconds;

Options quiet(int prompts, int concurrency) {
  Options options;
  options.progress = false;
  options.num_prompts = prompts;
  options.concurrency = concurrency;
  options.input_len = LengthRange{5, 5};
  options.output_len = LengthRange{4, 4};
  options.max_seconds = 30.0;
  return options;
}

RunResult run_against(const std::string& url, const Options& options) {
  const Server server{parse_url(url).value(), "m", PromptMaker(1)};
  auto records = run_load(options, server, "");
  REQUIRE(records.ok());
  return evaluate(options, std::move(*records));
}

// One request, answered like this.
RequestRecord ask(const std::vector<Piece>& answer, Options options = quiet(1, 1)) {
  ScriptedServer server([&](const ScriptedRequest&) { return answer; });
  const RunResult result = run_against(server.url(), options);
  REQUIRE(result.requests.size() == 1);
  return result.requests.front();
}

std::vector<Piece> in_pieces_of(const std::string& bytes, size_t size) {
  std::vector<Piece> pieces;
  for (size_t from = 0; from < bytes.size(); from += size)
    pieces.push_back({bytes.substr(from, size)});
  return pieces;
}

TEST_CASE("an answer counts the same however its bytes are split") {
  for (size_t size : {size_t{1}, size_t{2}, size_t{7}, size_t{100}, size_t{100000}}) {
    CAPTURE(size);
    const RequestRecord record = ask(in_pieces_of(whole_answer(4, 9), size));
    CHECK(record.ok);
    CHECK(record.token_times_s.size() == 4);
    CHECK(record.input_tokens == 9);
    CHECK(record.output_tokens == 4);
    CHECK(record.counted_by_server);
  }
}

TEST_CASE("comments, CRLF and role-only chunks are no tokens") {
  Options options = quiet(1, 1);
  options.endpoint = Endpoint::kChat;
  options.save_detailed = true;
  const std::string body =
      ": keep-alive\n"
      "data: "
      "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}"
      "\r\n\r\n"
      "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"},\"finish_reason\":null}]}\r\n\r\n"
      "event: x\n: ping\n\n"
      "data: {\"choices\":[{\"delta\":{\"content\":\"lo\"},\"finish_reason\":null}]}\n\n"
      "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
      "data: [DONE]\n\n";
  const RequestRecord record = ask({{stream_head() + http_chunk(body) + http_chunk("")}}, options);
  CHECK(record.ok);
  CHECK(record.token_times_s.size() == 2);
  CHECK(record.text == "Hello");
  CHECK_FALSE(record.counted_by_server);
}

TEST_CASE("a slow start is time to first token, not a failure") {
  const std::string answer = whole_answer(2, 3);
  const RequestRecord record = ask({{answer.substr(0, stream_head().size())},
                                    {answer.substr(stream_head().size()), milliseconds(60)}});
  CHECK(record.ok);
  CHECK(record.ttft_s() >= 0.06);
}

TEST_CASE("an error frame fails the request with its message") {
  const std::string body =
      text_frame("a") + "data: {\"error\":{\"message\":\"worker lost\"}}\n\ndata: [DONE]\n\n";
  const RequestRecord record = ask({{stream_head() + http_chunk(body) + http_chunk("")}});
  CHECK_FALSE(record.ok);
  CHECK(record.error == "error frame: worker lost");
}

TEST_CASE("refusals fail with status and message") {
  const std::string head = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 32\r\n\r\n";
  CHECK(ask({{head + "{\"error\":{\"message\":\"busy now\"}}"}}).error == "HTTP 503: busy now");
  // Cut in the middle, the status still says what it was.
  CHECK(ask({{head + "<html>no"}}).error == "HTTP 503: <html>no");
}

TEST_CASE("a stream that is cut off fails, with or without tokens") {
  CHECK(ask({{stream_head() + http_chunk(text_frame("a"))}}).error ==
        "connection closed in the middle of the answer");
  CHECK(ask({{stream_head() + http_chunk(text_frame("a")) + http_chunk("")}}).error ==
        "stream ended without a finish_reason");
  CHECK(ask({{stream_head() + http_chunk("data: [DONE]\n\n") + http_chunk("")}}).error ==
        "stream ended without any token");
  CHECK(ask({}).error == "connection closed before any answer");
  CHECK(ask({{"SSH-2.0-OpenSSH\r\n"}}).error.starts_with("malformed HTTP response"));
}

TEST_CASE("a close without the last chunk is fine once the finish was seen") {
  const RequestRecord record = ask({{stream_head() + http_chunk(text_frame("a", true))}});
  CHECK(record.ok);
}

TEST_CASE("a request that never ends is given up after its time") {
  Options options = quiet(1, 1);
  options.request_timeout_s = 0.2;
  const RequestRecord record = ask({{stream_head()}, {"", milliseconds(20000)}}, options);
  CHECK_FALSE(record.ok);
  CHECK(record.error == "no end within --request-timeout");
}

TEST_CASE("a run ends by max_seconds whatever the server does") {
  ScriptedServer server([](const ScriptedRequest&) {
    return std::vector<Piece>{{stream_head()}, {"", milliseconds(20000)}};
  });
  Options options = quiet(100, 5);
  options.max_seconds = 0.3;
  const RunResult result = run_against(server.url(), options);
  CHECK(result.failed == 5);
  CHECK(result.stopped_because == "cut off by --max-seconds");
  CHECK(result.duration_s < 5.0);
}

TEST_CASE("a dead server is not hammered for ever") {
  std::string url;
  {
    ScriptedServer server([](const ScriptedRequest&) { return std::vector<Piece>{}; });
    url = server.url();
  }
  Options options = quiet(100000, 4);
  const RunResult result = run_against(url, options);
  CHECK(result.completed == 0);
  CHECK(result.failed < 200);
  CHECK(result.stopped_because == "the server refuses connections");
  REQUIRE(result.failures.size() == 1);
  CHECK(result.failures[0].first == "connect: Connection refused");
}

TEST_CASE("a closed loop sends all prompts and never more at once than asked") {
  ScriptedServer server([](const ScriptedRequest&) {
    return std::vector<Piece>{{whole_answer(4, 5), milliseconds(3)}};
  });
  const RunResult result = run_against(server.url(), quiet(60, 6));
  CHECK(result.completed == 60);
  CHECK(result.failed == 0);
  CHECK(result.output_tokens == 240);
  CHECK(result.peak_in_flight <= 6);
}

TEST_CASE("an open loop sends on time whatever the answers take") {
  ScriptedServer server([](const ScriptedRequest&) {
    return std::vector<Piece>{{whole_answer(1, 5), milliseconds(300)}};
  });
  Options options = quiet(30, 0);
  options.request_rate = 200.0;
  options.arrival = ArrivalPlan::Kind::kConstant;
  const RunResult result = run_against(server.url(), options);
  CHECK(result.completed == 30);
  CHECK(result.peak_in_flight > 10);
  CHECK(server.peak_connections() > 10);
}

TEST_CASE("an open loop with a cap queues in the client and says for how long") {
  ScriptedServer server([](const ScriptedRequest&) {
    return std::vector<Piece>{{whole_answer(1, 5), milliseconds(50)}};
  });
  Options options = quiet(10, 2);
  options.request_rate = 1000.0;
  const RunResult result = run_against(server.url(), options);
  CHECK(result.completed == 10);
  CHECK(result.peak_in_flight <= 2);
  CHECK(result.client_queue_ms.max() > 100.0);
}

TEST_CASE("the mixed scenario keeps its streams going and adds long prompts") {
  ScriptedServer server([](const ScriptedRequest& request) {
    const bool is_long = request.body.find("\"max_tokens\":3,") != std::string::npos;
    return std::vector<Piece>{{whole_answer(is_long ? 3 : 4, 5), milliseconds(10)}};
  });
  Options options = quiet(1, 0);
  options.num_prompts.reset();
  options.scenario = Scenario::kMixed;
  options.duration_s = 0.5;
  options.mixed = {.streams = 3, .long_tokens = 50, .long_every_s = 0.1, .long_output = 3};
  const RunResult result = run_against(server.url(), options);
  REQUIRE(result.interference.has_value());
  CHECK(result.failed == 0);
  CHECK(result.interference->long_prompts >= 3);
  CHECK(result.completed > 20);
}

TEST_CASE("two thousand streams at once are all served") {
  ScriptedServer server([](const ScriptedRequest&) {
    const std::string answer = whole_answer(4, 5);
    return std::vector<Piece>{{answer.substr(0, 300), milliseconds(1500)},
                              {answer.substr(300), milliseconds(10)}};
  });
  const RunResult result = run_against(server.url(), quiet(2000, 2000));
  CHECK(result.completed == 2000);
  CHECK(result.failures.empty());
  CHECK(result.peak_in_flight > 1000);
}

TEST_CASE("the server's own tokenizer decides prompt lengths") {
  std::atomic<int> wrong{0};
  ScriptedServer server([&](const ScriptedRequest& request) {
    const auto reply = [](const std::string& body) {
      return std::vector<Piece>{{"HTTP/1.1 200 OK\r\nContent-Length: " +
                                 std::to_string(body.size()) + "\r\n\r\n" + body}};
    };
    if (request.target == "/v1/models") return reply("{\"data\":[{\"id\":\"model-a\"}]}");
    // A begin-of-text token, then one token per word.
    const auto words = std::count(request.body.begin(), request.body.end(), ' ') + 1;
    if (request.target == "/tokenize")
      return reply("{\"count\":" + std::to_string(words + 1) + "}");
    if (words != 19) ++wrong;
    return std::vector<Piece>{{whole_answer(4, 20)}};
  });
  Options options = quiet(5, 1);
  options.input_len = LengthRange{20, 20};
  auto found = set_up_server(options, server.url());
  REQUIRE(found.ok());
  CHECK(found->model == "model-a");
  CHECK(found->prompts.exact());
  CHECK(found->prompts.overhead() == 1);
  auto records = run_load(options, *found, "");
  REQUIRE(records.ok());
  CHECK(records->requests.size() == 5);
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace tandem::bench

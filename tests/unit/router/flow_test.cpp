// Proves the undisturbed request path against workers that speak the real link protocol: every form
// of an answer, and what workers are told for it.
#include <doctest/doctest.h>

#include "cluster.h"

namespace tandem::router {
namespace {

using nlohmann::json;

TEST_CASE("a completion goes through a prefill and a decode worker") {
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill();
  FakeWorker& decode = cluster.decode();
  cluster.start();
  HttpAnswer answer = http_post(cluster.address(), "/v1/completions", completion(8));
  REQUIRE(answer.status == 200);
  CHECK(answer.headers["x-tandem-decision"].starts_with(
      "path=remote prefill=p0 decode=d0 cached=0 reason=backlog predicted_ttft_ms="));
  CHECK(answer.headers["x-request-id"].size() == 32);
  const json body = answer.json();
  CHECK(body["object"] == "text_completion");
  CHECK(body["model"] == "sim");
  CHECK(body["choices"][0]["finish_reason"] == "length");
  CHECK(!body["choices"][0]["text"].get<std::string>().empty());
  CHECK(body["usage"]["completion_tokens"] == 8);
  CHECK(body["usage"]["prompt_tokens"].get<int>() > 0);
  CHECK(prefill.counts().prefills == 1);
  CHECK(decode.counts().decodes == 1);
  CHECK(decode.counts().cancels == 0);
}

TEST_CASE("a stream says the same as a body, one frame at a time") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  const std::string whole =
      http_post(cluster.address(), "/v1/completions", completion(20)).json()["choices"][0]["text"];
  HttpAnswer answer = http_post(cluster.address(), "/v1/completions", completion(20, true));
  REQUIRE(answer.status == 200);
  CHECK(answer.headers["content-type"] == "text/event-stream; charset=utf-8");
  CHECK(answer.headers["cache-control"] == "no-cache");
  CHECK(answer.headers["x-accel-buffering"] == "no");
  CHECK(answer.headers["x-tandem-decision"].starts_with("path=remote"));
  CHECK(answer.complete);
  CHECK(stream_text(answer.body) == whole);
  const auto frames = sse_frames(answer.body);
  CHECK(frames.back() == "[DONE]");
  for (const json& frame : frames) CHECK(!frame.is_discarded());
  for (const json& frame : frames)
    if (frame.is_object()) CHECK(!frame.contains("usage"));
  for (const std::string& chunk : answer.chunks) CHECK(chunk.ends_with("\n\n"));
}

TEST_CASE("a stream ends with usage where the client wants it") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  json request = completion(5, true);
  request["stream_options"] = {{"include_usage", true}};
  const auto frames = sse_frames(http_post(cluster.address(), "/v1/completions", request).body);
  REQUIRE(frames.size() >= 2);
  const json& usage = frames[frames.size() - 2];
  CHECK(usage["choices"].empty());
  CHECK(usage["usage"]["completion_tokens"] == 5);
}

TEST_CASE("choices share one prefill and have seeds of their own") {
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill();
  FakeWorker& decode = cluster.decode();
  cluster.start();
  json request = completion(6);
  request["n"] = 3;
  const json body = http_post(cluster.address(), "/v1/completions", request).json();
  REQUIRE(body["choices"].size() == 3);
  for (int i = 0; i < 3; ++i) CHECK(body["choices"][static_cast<size_t>(i)]["index"] == i);
  CHECK(body["choices"][0]["text"] != body["choices"][1]["text"]);
  CHECK(body["usage"]["completion_tokens"] == 18);
  CHECK(prefill.counts().prefills == 1);
  const link::Leg leg = decode.counts().legs.at(0);
  CHECK(leg.choices == 3);
  for (int i = 0; i < 3; ++i) CHECK(leg.seeds[static_cast<size_t>(i)] == choice_seed(7, 0, i));
  const std::string stream = http_post(cluster.address(), "/v1/completions",
                                       [&] {
                                         json streamed = request;
                                         streamed["stream"] = true;
                                         return streamed;
                                       }())
                                 .body;
  for (int i = 0; i < 3; ++i)
    CHECK(stream_text(stream, i) ==
          body["choices"][static_cast<size_t>(i)]["text"].get<std::string>());
}

TEST_CASE("a batch of prompts is answered in order, and more than fit at once are taken in turn") {
  Cluster cluster;
  cluster.prefill();
  FakeWorker& decode = cluster.decode();
  cluster.start();
  json request = completion(3);
  request["n"] = 2;
  request["prompt"] = json::array();
  for (int i = 0; i < 100; ++i) request["prompt"].push_back("prompt " + std::to_string(i));
  const json body = http_post(cluster.address(), "/v1/completions", request).json();
  REQUIRE(body["choices"].size() == 200);
  for (size_t i = 0; i < 200; ++i) CHECK(body["choices"][i]["index"] == i);
  CHECK(decode.counts().decodes == 100);
  request["prompt"] = json::array({"prompt 0"});
  const json one = http_post(cluster.address(), "/v1/completions", request).json();
  CHECK(one["choices"][0]["text"] == body["choices"][0]["text"]);
}

TEST_CASE("without a seed the router draws one, and both workers get the same") {
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill();
  FakeWorker& decode = cluster.decode();
  cluster.start();
  json request = completion(4);
  request.erase("seed");
  CHECK(http_post(cluster.address(), "/v1/completions", request).status == 200);
  CHECK(http_post(cluster.address(), "/v1/completions", request).status == 200);
  const auto legs = prefill.counts().legs;
  CHECK(legs[0].seeds == decode.counts().legs[0].seeds);
  CHECK(legs[0].seeds != legs[1].seeds);
  CHECK(legs[0].transfer != legs[1].transfer);
}

TEST_CASE("one token needs no decode worker") {
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill();
  FakeWorker& decode = cluster.decode();
  cluster.start();
  HttpAnswer answer = http_post(cluster.address(), "/v1/completions", completion(1));
  CHECK(answer.json()["usage"]["completion_tokens"] == 1);
  CHECK(answer.headers["x-tandem-decision"].starts_with(
      "path=prefill_only prefill=p0 cached=0 reason=backlog "));
  CHECK(prefill.counts().prefills == 1);
  CHECK(decode.counts().decodes == 0);
}

TEST_CASE("an answer whose first token is the end stops at once") {
  Cluster cluster;
  cluster.prefill({.end_at = 0});
  cluster.decode({.end_at = 0});
  cluster.start();
  const json body = http_post(cluster.address(), "/v1/completions", completion(50)).json();
  CHECK(body["choices"][0]["finish_reason"] == "stop");
  CHECK(body["choices"][0]["text"] == "");
  CHECK(body["usage"]["completion_tokens"] == 1);
}

TEST_CASE("a stop string ends the choice that said it and its work on the decode worker") {
  Cluster cluster;
  cluster.prefill();
  FakeWorker& decode = cluster.decode({.step_time = std::chrono::milliseconds(2)});
  cluster.start();
  json request = completion(60);
  request["n"] = 2;
  const json whole = http_post(cluster.address(), "/v1/completions", request).json();
  const std::string text = whole["choices"][0]["text"];
  const std::string stop = text.substr(text.size() / 4, 9);
  request["stop"] = stop;
  const json body = http_post(cluster.address(), "/v1/completions", request).json();
  CHECK(body["choices"][0]["finish_reason"] == "stop");
  CHECK(body["choices"][0]["text"] == text.substr(0, text.find(stop)));
  CHECK(body["choices"][1]["finish_reason"] == "length");
  CHECK(body["choices"][1]["text"] == whole["choices"][1]["text"]);
  CHECK(eventually([&] { return decode.counts().choice_cancels == 1; }));
  request["n"] = 1;
  CHECK(http_post(cluster.address(), "/v1/completions", request).json()["choices"][0]["text"] ==
        text.substr(0, text.find(stop)));
  CHECK(eventually([&] { return decode.counts().cancels == 1; }));
}

TEST_CASE("echo alone needs no worker at all") {
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill();
  cluster.decode();
  cluster.start();
  json request = completion(0);
  request["echo"] = true;
  const json body = http_post(cluster.address(), "/v1/completions", request).json();
  CHECK(body["choices"][0]["text"] == "hello world");
  CHECK(body["choices"][0]["finish_reason"] == "length");
  CHECK(prefill.counts().prefills == 0);
}

TEST_CASE("a coupled worker serves a request alone") {
  Cluster cluster;
  FakeWorker& worker = cluster.coupled();
  cluster.start();
  HttpAnswer answer = http_post(cluster.address(), "/v1/completions", completion(5));
  CHECK(answer.json()["usage"]["completion_tokens"] == 5);
  CHECK(answer.headers["x-tandem-decision"].starts_with(
      "path=local decode=c0 cached=0 reason=coupled "));
  CHECK(worker.counts().legs.at(0).choices == 1);
}

TEST_CASE("a chat is rendered with the model's template") {
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill();
  cluster.decode();
  cluster.start();
  const json request = {{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})},
                        {"max_tokens", 4},
                        {"seed", 3}};
  const HttpAnswer answer = http_post(cluster.address(), "/v1/chat/completions", request);
  if (answer.status == 400) {
    // Without Jinja2 beside the build, chats are refused with the reason and nothing else suffers.
    CHECK(answer.json()["error"]["param"] == "messages");
    MESSAGE("no Jinja2 here: the chat path was not tested");
    return;
  }
  REQUIRE(answer.status == 200);
  CHECK(answer.json()["object"] == "chat.completion");
  CHECK(answer.json()["usage"]["completion_tokens"] == 4);
  CHECK(prefill.counts().legs.at(0).tokens.size() > 10);
  json streamed = request;
  streamed["stream"] = true;
  const std::string body = http_post(cluster.address(), "/v1/chat/completions", streamed).body;
  CHECK(sse_frames(body).front()["choices"][0]["delta"]["role"] == "assistant");
  CHECK(stream_text(body) == answer.json()["choices"][0]["message"]["content"].get<std::string>());
}

TEST_CASE("the timeline of a request tells its phases in order") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  HttpClient client(cluster.address());
  client.send_post("/v1/completions", completion(5).dump(), "X-Request-Id: my-id-1\r\n");
  HttpAnswer answer = client.read_answer();
  CHECK(answer.headers["x-request-id"] == "my-id-1");
  const json record = http_get(cluster.address(), "/v1/requests/my-id-1").json();
  CHECK(record["outcome"] == "ok");
  CHECK(record["completion_tokens"] == 5);
  CHECK(record["prefill"] == "p0");
  CHECK(record["decode"] == "d0");
  const json& times = record["times_us"];
  int64_t last = 0;
  for (const char* name :
       {"received", "tokenised", "queued", "dispatched", "joined", "last_token"}) {
    CAPTURE(name);
    REQUIRE(times.contains(name));
    CHECK(times[name].get<int64_t>() >= last);
    last = times[name];
  }
  CHECK(times.contains("first_token"));
  CHECK(http_get(cluster.address(), "/v1/requests/unknown").status == 404);
}

TEST_CASE("metrics count what happened, and workers' own series carry their names") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  const double before = cluster.metric("tandem_requests_total{outcome=\"ok\"}");
  const double tokens = cluster.metric("tandem_completion_tokens_total");
  CHECK(http_post(cluster.address(), "/v1/completions", completion(5)).status == 200);
  CHECK(cluster.metric("tandem_requests_total{outcome=\"ok\"}") == before + 1);
  CHECK(cluster.metric("tandem_completion_tokens_total") == tokens + 5);
  CHECK(cluster.metric("tandem_ttft_seconds_count") >= 1);
  CHECK(cluster.metric("tandem_itl_seconds_count") >= 4);
  CHECK(cluster.metric("tandem_queue_seconds_count{stage=\"schedule\"}") >= 1);
  CHECK(cluster.metric("vllm:num_requests_running{model_name=\"sim\"}") == 0);
  const std::string text = http_get(cluster.address(), "/metrics").body;
  CHECK(text.find("worker=\"d0\"") != std::string::npos);
  CHECK(text.find("tandem_kv_tokens{") != std::string::npos);
  CHECK(text.find("tandem_decode_tokens_total{worker=\"d0\"} 7") != std::string::npos);
}

TEST_CASE("many requests at once all end well") {
  Cluster cluster;
  cluster.prefill();
  cluster.prefill();
  cluster.decode();
  cluster.decode();
  cluster.config.router.threads = 2;
  cluster.config.router.tokenizer_threads = 2;
  cluster.start();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(std::make_unique<HttpClient>(cluster.address()));
    json request = completion(20, i % 2 == 0);
    request["seed"] = i;
    clients.back()->send_post("/v1/completions", request.dump());
  }
  for (auto& client : clients) {
    const HttpAnswer answer = client->read_answer();
    CHECK(answer.status == 200);
    CHECK(answer.complete);
  }
}

}  // namespace
}  // namespace tandem::router

// Proves the HTTP server's manners: limits, deadlines, keep-alive, disconnects in every phase, and
// that every error is JSON.
#include <doctest/doctest.h>

#include "cluster.h"

namespace tandem::router {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

// A router without workers is enough for what never reaches one.
using Bare = Cluster;

void check_error(const HttpAnswer& answer, int status, const std::string& code) {
  CHECK(answer.status == status);
  CHECK(answer.headers.at("content-type") == "application/json");
  const json error = answer.json()["error"];
  CHECK(error["code"] == code);
  CHECK(error["message"].is_string());
  CHECK(error.contains("type"));
  CHECK(error.contains("param"));
}

TEST_CASE("unknown paths and methods are refused in JSON") {
  Bare cluster;
  cluster.start();
  check_error(http_get(cluster.address(), "/nowhere"), 404, "unknown_url");
  HttpAnswer wrong = http_get(cluster.address(), "/v1/completions");
  check_error(wrong, 405, "method_not_supported");
  CHECK(wrong.headers["allow"].find("POST") != std::string::npos);
  HttpClient client(cluster.address());
  check_error(client.post("/v1/models", "{}"), 405, "method_not_supported");
}

TEST_CASE("paths are forgiving where clients differ") {
  Bare cluster;
  cluster.start();
  for (const char* path : {"/v1/models", "/models", "//v1//models/", "/v1/models?x=1"}) {
    CAPTURE(path);
    const HttpAnswer answer = http_get(cluster.address(), path);
    REQUIRE(answer.status == 200);
    CHECK(answer.json()["data"][0]["id"] == "sim");
    CHECK(answer.json()["data"][0]["max_model_len"] == 4096);
  }
  CHECK(http_get(cluster.address(), "/v1/models/sim").json()["id"] == "sim");
  check_error(http_get(cluster.address(), "/v1/models/other"), 404, "model_not_found");
  CHECK(http_get(cluster.address(), "/version").json().contains("version"));
  CHECK(http_get(cluster.address(), "/health/live").status == 200);
  check_error(http_get(cluster.address(), "/health"), 503, "not_ready");
  CHECK(http_get(cluster.admin(), "/health").status == 503);
  CHECK(http_get(cluster.admin(), "/metrics").body.find("tandem_router_connections") !=
        std::string::npos);
  check_error(http_get(cluster.admin(), "/nowhere"), 404, "unknown_url");
}

TEST_CASE("malformed requests are answered with 400 and the connection closes") {
  Bare cluster;
  cluster.start();
  for (const char* text :
       {"nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /x HTTP/1.1\r\nbad header\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n"
        "\r\n0\r\n\r\n"}) {
    CAPTURE(text);
    HttpClient client(cluster.address());
    client.send(text);
    const HttpAnswer answer = client.read_answer();
    CHECK(answer.status == 400);
    CHECK(answer.json()["error"]["code"].is_string());
    CHECK(client.closed_by_peer());
  }
}

TEST_CASE("bodies that are no request are refused before any worker hears of them") {
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill();
  cluster.decode();
  cluster.start();
  HttpClient client(cluster.address());
  for (const char* body : {"", "[]", "{", "{\"prompt\": 1e999}", "null", "{\"prompt\":\"\xff\"}"}) {
    CAPTURE(body);
    CHECK(client.post("/v1/completions", body).status == 400);
  }
  json bad = completion(4, true);
  bad["temperature"] = 200;
  CHECK(client.post("/v1/completions", bad.dump()).status == 400);
  json other = completion();
  other["model"] = "other";
  check_error(client.post("/v1/completions", other.dump()), 404, "model_not_found");
  json long_prompt = completion();
  long_prompt["prompt"] = std::string(5000, 'x');
  check_error(client.post("/v1/completions", long_prompt.dump()), 400, "context_length_exceeded");
  client.send(
      "POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
  check_error(client.read_answer(), 415, "unsupported_media_type");
  CHECK(prefill.counts().prefills == 0);
}

TEST_CASE("an oversized body or head is refused") {
  Bare cluster;
  cluster.config.router.body_bytes_max = 10000;
  cluster.config.router.header_bytes_max = 2000;
  cluster.start();
  HttpClient client(cluster.address());
  client.send_post("/v1/completions", std::string(200000, ' '));
  check_error(client.read_answer(), 413, "request_too_large");
  HttpClient chunked(cluster.address());
  chunked.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.send("400\r\n" + std::string(1024, 'x') + "\r\n");
  CHECK(chunked.read_answer().status == 413);
  HttpClient head(cluster.address());
  head.send("GET / HTTP/1.1\r\nX-Long: " + std::string(5000, 'x') + "\r\n\r\n");
  CHECK(head.read_answer().status == 431);
}

TEST_CASE("a client may ask before it sends a large body") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  HttpClient client(cluster.address());
  const std::string body = completion(4).dump();
  client.send(
      "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  CHECK(client.read_answer().status == 100);
  client.send(body);
  CHECK(client.read_answer().status == 200);
}

TEST_CASE("a connection carries many requests, pipelined ones too") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  HttpClient client(cluster.address());
  for (int i = 0; i < 3; ++i)
    CHECK(client.post("/v1/completions", completion(4, i == 1).dump()).status == 200);
  const std::string body = completion(3).dump();
  const std::string request =
      "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  client.send(request + "GET /version HTTP/1.1\r\n\r\n" + request);
  CHECK(client.read_answer().json()["usage"]["completion_tokens"] == 3);
  CHECK(client.read_answer().json().contains("version"));
  CHECK(client.read_answer().json()["usage"]["completion_tokens"] == 3);
}

TEST_CASE("HTTP/1.0 clients get a body that ends with the connection") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  HttpClient client(cluster.address());
  const std::string body = completion(4, true).dump();
  client.send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const HttpAnswer answer = client.read_answer();
  CHECK(answer.status == 200);
  CHECK(!answer.headers.contains("transfer-encoding"));
  CHECK(sse_frames(answer.body).back() == "[DONE]");
}

TEST_CASE("browsers may call from anywhere, and see errors too") {
  Bare cluster;
  cluster.start();
  HttpClient client(cluster.address());
  client.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nOrigin: http://a.example\r\n"
      "Access-Control-Request-Headers: authorization, x-stainless-os\r\n\r\n");
  HttpAnswer answer = client.read_answer();
  CHECK(answer.status == 204);
  CHECK(answer.headers["access-control-allow-origin"] == "http://a.example");
  CHECK(answer.headers["access-control-allow-headers"] == "authorization, x-stainless-os");
  client.send("GET /nowhere HTTP/1.1\r\nOrigin: http://a.example\r\n\r\n");
  answer = client.read_answer();
  CHECK(answer.headers["access-control-allow-origin"] == "http://a.example");
  CHECK(answer.headers["vary"] == "Origin");
}

TEST_CASE("a given request id comes back, an odd one is replaced") {
  Bare cluster;
  cluster.start();
  HttpClient client(cluster.address());
  client.send("GET /version HTTP/1.1\r\nX-Request-Id: abc-1\r\n\r\n");
  CHECK(client.read_answer().headers["x-request-id"] == "abc-1");
  client.send("GET /version HTTP/1.1\r\nX-Request-Id: " + std::string(200, 'a') + "\r\n\r\n");
  CHECK(client.read_answer().headers["x-request-id"].size() == 32);
}

TEST_CASE("a client that does not finish its request is told so and cut off") {
  Bare cluster;
  cluster.config.router.read_deadline = Milliseconds(200);
  cluster.config.router.idle_deadline = Milliseconds(600);
  cluster.start();
  HttpClient client(cluster.address());
  client.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc");
  CHECK(client.read_answer().status == 408);
  CHECK(client.closed_by_peer());
  HttpClient idle(cluster.address());
  CHECK(idle.get("/version").status == 200);
  CHECK(idle.closed_by_peer());
}

TEST_CASE("connections beyond the limit are told so") {
  Bare cluster;
  cluster.start();
  Config config = cluster.config;
  config.router.connections_max = 2;
  Router router(config);
  REQUIRE(router.start().ok());
  HttpClient first(router.address()), second(router.address());
  CHECK(first.get("/version").status == 200);
  CHECK(second.get("/version").status == 200);
  HttpClient third(router.address());
  HttpAnswer answer = third.get("/version");
  CHECK(answer.status == 503);
  CHECK(answer.headers.contains("retry-after"));
  first.close();
  CHECK(eventually([&] { return HttpClient(router.address()).get("/version").status == 200; }));
}

TEST_CASE("a full router refuses with the time to come back") {
  Script slow;
  slow.prompt_time = 300ms;
  Cluster cluster;
  cluster.prefill(slow);
  cluster.decode();
  cluster.config.router.requests_max = 2;
  cluster.start();
  HttpClient first(cluster.address()), second(cluster.address());
  first.send_post("/v1/completions", completion(2).dump());
  second.send_post("/v1/completions", completion(2).dump());
  CHECK(eventually([&] { return cluster.workers[0]->counts().prefills == 2; }));
  HttpAnswer answer = http_post(cluster.address(), "/v1/completions", completion(2));
  check_error(answer, 503, "server_is_overloaded");
  CHECK(std::stoi(answer.headers["retry-after"]) >= 1);
  CHECK(first.read_answer().status == 200);
  CHECK(second.read_answer().status == 200);
}

TEST_CASE("a full queue refuses, and what waits is served") {
  Script slow;
  slow.step_time = 20ms;
  Cluster cluster;
  cluster.prefill();
  FakeWorker::Options narrow;
  narrow.script = slow;
  narrow.slots = 1;
  cluster.add(narrow);
  cluster.config.scheduler.queue_max = 1;
  cluster.start();
  HttpClient first(cluster.address()), second(cluster.address());
  first.send_post("/v1/completions", completion(10).dump());
  CHECK(eventually([&] { return cluster.workers[1]->counts().decodes == 1; }));
  second.send_post("/v1/completions", completion(10).dump());
  CHECK(eventually([&] { return cluster.metric("tandem_router_queue") == 1; }));
  check_error(http_post(cluster.address(), "/v1/completions", completion(10)), 503,
              "server_is_overloaded");
  CHECK(first.read_answer().status == 200);
  CHECK(second.read_answer().status == 200);
}

TEST_CASE("a client that leaves in any phase takes its work with it") {
  Script slow;
  slow.step_time = 5ms;
  for (const std::string phase : {"queued", "prefill", "body", "stream", "reset"}) {
    CAPTURE(phase);
    Script prompt;
    if (phase == "prefill") prompt.prompt = [](const link::Leg&) { return Fate::kHang; };
    Cluster cluster;
    cluster.prefill(prompt);
    FakeWorker::Options one;
    one.script = slow;
    one.slots = 1;
    FakeWorker& decode = cluster.add(one);
    cluster.start();
    HttpClient holder(cluster.address());
    if (phase == "queued") {
      holder.send_post("/v1/completions", completion(400, true).dump());
      holder.read_frames(2);
    }
    HttpClient client(cluster.address());
    client.send_post("/v1/completions", completion(2000, phase != "body").dump());
    if (phase == "queued")
      CHECK(eventually([&] { return cluster.metric("tandem_router_queue") == 1; }));
    else if (phase == "prefill")
      CHECK(eventually([&] { return cluster.workers[0]->counts().prefills == 1; }));
    else if (phase == "body")
      CHECK(eventually([&] { return decode.counts().decodes == 1; }));
    else
      CHECK(!client.read_frames(3).empty());
    if (phase == "reset")
      client.reset();
    else
      client.close();
    if (phase == "queued") {
      CHECK(eventually([&] { return cluster.metric("tandem_router_queue") == 0; }));
      holder.close();
    } else {
      CHECK(eventually([&] { return decode.counts().cancels == 1; }));
    }
    CHECK(eventually([&] { return cluster.idle(); }, 2s));
  }
}

TEST_CASE("a client that reads nothing is cut off and its work ends") {
  Cluster cluster;
  cluster.config.router.write_deadline = Milliseconds(300);
  cluster.config.model.context = 200000;
  FakeWorker::Options big;
  big.context = 200000;
  big.kv_tokens = 1 << 20;
  big.script.step_time = std::chrono::microseconds(100);
  FakeWorker& receiver = cluster.add(big);
  big.role = Role::kPrefill;
  cluster.add(big);
  cluster.start();
  HttpClient client(cluster.address(), 2048);
  client.send_post("/v1/completions", completion(150000, true).dump());
  CHECK(eventually([&] { return receiver.counts().cancels == 1; }, 60s));
}

TEST_CASE("tokens and texts are converted both ways") {
  Bare cluster;
  cluster.start();
  const json tokens =
      http_post(cluster.address(), "/tokenize", {{"prompt", "abc"}, {"add_special_tokens", false}})
          .json();
  CHECK(tokens["count"] == 3);
  const json text =
      http_post(cluster.address(), "/v1/detokenize", {{"tokens", tokens["tokens"]}}).json();
  CHECK(text["prompt"] == "abc");
  CHECK(http_post(cluster.address(), "/detokenize", {{"tokens", {99999999}}}).status == 400);
}

TEST_CASE("draining ends what runs and takes nothing new") {
  Script slow;
  slow.step_time = 10ms;
  Cluster cluster;
  cluster.prefill();
  cluster.decode(slow);
  Router& router = cluster.start();
  HttpClient running(cluster.address()), kept(cluster.address());
  CHECK(kept.get("/version").status == 200);
  running.send_post("/v1/completions", completion(30, true).dump());
  running.read_frames(1);
  router.drain();
  CHECK(kept.closed_by_peer());
  CHECK(http_get(cluster.admin(), "/health").status == 503);
  HttpClient late(cluster.address());
  CHECK(late.get("/version").status == 0);
  std::string rest;
  for (std::string piece = running.receive(); !piece.empty(); piece = running.receive())
    rest += piece;
  CHECK(rest.find("[DONE]") != std::string::npos);
  CHECK(rest.find("\"error\"") == std::string::npos);
}

TEST_CASE("a stop in the middle of streams gives each an error frame") {
  Script slow;
  slow.step_time = 10ms;
  Cluster cluster;
  cluster.prefill();
  cluster.decode(slow);
  cluster.config.router.drain_deadline = Milliseconds(100);
  cluster.start();
  auto router = std::make_unique<Router>(cluster.config);
  REQUIRE(router->start().ok());
  REQUIRE(eventually([&] { return router->ready(); }));
  HttpClient client(router->address());
  client.send_post("/v1/completions", completion(3000, true).dump());
  client.read_frames(2);
  router->drain();
  router->stop();
  std::string rest;
  for (std::string piece = client.receive(); !piece.empty(); piece = client.receive())
    rest += piece;
  CHECK(rest.find("\"error\"") != std::string::npos);
  CHECK(rest.find("[DONE]") != std::string::npos);
}

TEST_CASE("a port in use stops the start with a clear message") {
  Bare cluster;
  cluster.start();
  Config config = cluster.config;
  config.router.listen = cluster.address();
  Router second(config);
  const Status status = second.start();
  CHECK(!status.ok());
  CHECK(status.message().find("router.listen") != std::string::npos);
  CHECK(status.message().find(cluster.address()) != std::string::npos);
  config = cluster.config;
  config.router.admin = cluster.admin();
  Router third(config);
  CHECK(third.start().message().find("router.admin") != std::string::npos);
}

}  // namespace
}  // namespace tandem::router

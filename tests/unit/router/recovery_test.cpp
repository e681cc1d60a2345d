// Proves that a request outlives its workers: whatever leg fails and whenever, the client gets
// every byte once, or one clear error.
#include <doctest/doctest.h>

#include <atomic>

#include "cluster.h"

namespace tandem::router {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

// Does `fate` once, the first time that `when` says so; shared by all legs of a worker.
Script once_at_token(int emitted, Fate fate) {
  auto fired = std::make_shared<std::atomic<bool>>(false);
  Script script;
  script.token = [=](const link::Leg&, int now) {
    if (now != emitted || fired->exchange(true)) return Fate::kGoOn;
    return fate;
  };
  return script;
}

Script once_at_prompt(Fate fate) {
  auto fired = std::make_shared<std::atomic<bool>>(false);
  Script script;
  script.prompt = [=](const link::Leg&) { return fired->exchange(true) ? Fate::kGoOn : fate; };
  return script;
}

std::string reference(const json& request, int choice = 0) {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  return http_post(cluster.address(), "/v1/completions", request)
      .json()["choices"][static_cast<size_t>(choice)]["text"];
}

TEST_CASE("a failed prefill is tried on another worker") {
  Cluster cluster;
  cluster.prefill(once_at_prompt(Fate::kFail));
  cluster.prefill();
  FakeWorker& decode = cluster.decode();
  cluster.start();
  HttpAnswer answer = http_post(cluster.address(), "/v1/completions", completion(8));
  CHECK(answer.status == 200);
  CHECK(answer.json()["choices"][0]["text"] == reference(completion(8)));
  CHECK(decode.counts().cancels == 1);  // The leg that waited for the first prefill
  CHECK(cluster.metric("tandem_recovered_total{phase=\"prefill\"}") >= 1);
}

TEST_CASE("a prefill worker that dies takes no request with it") {
  Cluster cluster;
  cluster.prefill(once_at_prompt(Fate::kDie));
  cluster.prefill();
  FakeWorker& decode = cluster.decode();
  cluster.start();
  CHECK(
      http_post(cluster.address(), "/v1/completions", completion(8)).json()["choices"][0]["text"] ==
      reference(completion(8)));
  CHECK(decode.counts().cancels == 1);
}

TEST_CASE("a prefill worker that dies after its prompt is computed is not missed") {
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill();
  FakeWorker& decode = cluster.decode({.step_time = 3ms});
  cluster.start();
  HttpClient client(cluster.address());
  client.send_post("/v1/completions", completion(30, true).dump());
  const std::string begin = client.read_frames(3);
  prefill.die();
  std::string all = begin;
  while (all.find("[DONE]") == std::string::npos) {
    const std::string piece = client.receive();
    if (piece.empty()) break;
    all += piece;
  }
  CHECK(all.find("\"error\"") == std::string::npos);
  CHECK(decode.counts().decodes == 1);
}

TEST_CASE("the stream goes on byte for byte when the decode worker dies at any token") {
  const json request = completion(12, true);
  const std::string expected = reference(completion(12));
  for (int at = 1; at < 12; ++at) {
    CAPTURE(at);
    Cluster cluster;
    cluster.prefill();
    cluster.decode(once_at_token(at, Fate::kDie));
    cluster.decode();
    cluster.start();
    const HttpAnswer answer = http_post(cluster.address(), "/v1/completions", request);
    CHECK(answer.complete);
    CHECK(stream_text(answer.body) == expected);
    CHECK(sse_frames(answer.body).back() == "[DONE]");
    FakeWorker& second = *cluster.workers[2];
    REQUIRE(second.counts().decodes == (at == 11 ? 0 : 1));
    if (at == 11) {  // One token was left: a prefill alone gives it
      CHECK(cluster.workers[0]->counts().prefills == 2);
      continue;
    }
    const link::Leg leg = second.counts().legs.at(0);
    CHECK(leg.choices == 1);
    CHECK(leg.max_tokens == 12);
    CHECK(static_cast<int>(leg.tokens.size()) - leg.prompt_count == at);
    CHECK(cluster.metric("tandem_recovered_total{phase=\"decode\"}") >= 1);
  }
}

TEST_CASE("every unfinished choice of a lost worker is resumed") {
  json request = completion(10);
  request["n"] = 3;
  json whole;
  {
    Cluster cluster;
    cluster.prefill();
    cluster.decode();
    cluster.start();
    whole = http_post(cluster.address(), "/v1/completions", request).json();
  }
  Cluster cluster;
  cluster.prefill();
  cluster.decode(once_at_token(4, Fate::kDie));
  cluster.decode();
  cluster.start();
  const json body = http_post(cluster.address(), "/v1/completions", request).json();
  for (size_t i = 0; i < 3; ++i) CHECK(body["choices"][i]["text"] == whole["choices"][i]["text"]);
  CHECK(body["usage"] == whole["usage"]);
  CHECK(cluster.workers[2]->counts().decodes == 3);
}

TEST_CASE("a decode leg that fails or refuses is resumed elsewhere") {
  for (const Fate fate : {Fate::kFail, Fate::kDie}) {
    Cluster cluster;
    FakeWorker& prefill = cluster.prefill();
    cluster.decode(once_at_prompt(fate));
    cluster.decode();
    cluster.start();
    CHECK(http_post(cluster.address(), "/v1/completions", completion(8))
              .json()["choices"][0]["text"] == reference(completion(8)));
    CHECK(eventually([&] { return prefill.counts().active == 0; }));
  }
}

TEST_CASE("a single pair of workers gets another try after a passing failure") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode(once_at_token(3, Fate::kFail));
  cluster.start();
  CHECK(
      http_post(cluster.address(), "/v1/completions", completion(8)).json()["choices"][0]["text"] ==
      reference(completion(8)));
}

TEST_CASE("a worker that is frozen is noticed and its streams go on") {
  Cluster cluster;
  cluster.config.link.silence_max = Milliseconds(500);
  cluster.prefill();
  cluster.decode(once_at_token(5, Fate::kFreeze));
  cluster.decode();
  cluster.start();
  CHECK(
      http_post(cluster.address(), "/v1/completions", completion(8)).json()["choices"][0]["text"] ==
      reference(completion(8)));
  cluster.workers[1]->die();
}

TEST_CASE("legs that hang while their links live are given up after their phase's limit") {
  for (const bool in_prefill : {true, false}) {
    Cluster cluster;
    cluster.prefill(in_prefill ? once_at_prompt(Fate::kHang) : Script{});
    cluster.prefill();
    Script hang;
    auto hung = std::make_shared<std::atomic<uint64_t>>(0);
    hang.token = [hung](const link::Leg& leg, int emitted) {
      uint64_t none = 0;
      if (emitted == 3) hung->compare_exchange_strong(none, leg.transfer.value);
      return hung->load() == leg.transfer.value ? Fate::kHang : Fate::kGoOn;
    };
    cluster.decode(in_prefill ? Script{} : hang);
    cluster.decode();
    cluster.config.router.prefill_quiet = cluster.config.router.decode_quiet = 300ms;
    cluster.config.router.sweep = 20ms;
    cluster.start();
    const HttpAnswer answer = http_post(cluster.address(), "/v1/completions", completion(8));
    CHECK(answer.status == 200);
    CHECK(answer.json()["choices"][0]["text"] == reference(completion(8)));
  }
}

TEST_CASE("with nobody left a stream ends with one error frame") {
  Cluster cluster;
  cluster.config.scheduler.queue_deadline = 300ms;  // Nobody comes back within it
  cluster.prefill();
  cluster.decode(once_at_token(4, Fate::kDie));
  cluster.start();
  const HttpAnswer answer = http_post(cluster.address(), "/v1/completions", completion(12, true));
  CHECK(answer.status == 200);
  CHECK(answer.complete);
  const auto frames = sse_frames(answer.body);
  REQUIRE(frames.size() >= 2);
  CHECK(frames.back() == "[DONE]");
  const json& error = frames[frames.size() - 2]["error"];
  CHECK(error["code"] == "worker_lost");
  CHECK(error["type"] == "server_error");
  CHECK(answer.headers.at("x-request-id").size() == 32);
  // What was said before the loss is there, once.
  CHECK(reference(completion(12)).starts_with(stream_text(answer.body)));
  CHECK(!stream_text(answer.body).empty());
}

TEST_CASE("with nobody left a body is one error") {
  Cluster cluster;
  cluster.config.scheduler.queue_deadline = 300ms;
  cluster.prefill();
  cluster.decode(once_at_token(4, Fate::kDie));
  cluster.start();
  const HttpAnswer answer = http_post(cluster.address(), "/v1/completions", completion(12));
  CHECK(answer.status == 502);
  CHECK(answer.json()["error"]["code"] == "worker_lost");
  HttpAnswer next = http_post(cluster.address(), "/v1/completions", completion(12));
  CHECK(next.status == 503);
  CHECK(next.json()["error"]["code"] == "not_ready");
  CHECK(next.headers.contains("retry-after"));
}

TEST_CASE("a worker that fails at once does not attract everything") {
  Script broken;
  broken.prompt = [](const link::Leg&) { return Fate::kFail; };
  Cluster cluster;
  FakeWorker& bad = cluster.prefill(broken);
  cluster.prefill();
  cluster.decode();
  cluster.decode();
  cluster.start();
  for (int i = 0; i < 20; ++i)
    CHECK(http_post(cluster.address(), "/v1/completions", completion(3)).status == 200);
  CHECK(bad.counts().prefills < 8);
}

TEST_CASE("a decode worker's word on a failed transfer makes the prefill worker suspect too") {
  Script broken;
  broken.prompt = [](const link::Leg&) { return Fate::kFail; };
  Cluster cluster;
  cluster.prefill();
  cluster.prefill();
  cluster.decode(broken);
  cluster.decode();
  cluster.start();
  CHECK(http_post(cluster.address(), "/v1/completions", completion(3)).status == 200);
  CHECK(cluster.workers[0]->counts().prefills == 1);
  CHECK(cluster.workers[1]->counts().prefills == 1);
}

TEST_CASE("attempts are bounded") {
  Script always;
  always.prompt = [](const link::Leg&) { return Fate::kFail; };
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill(always);
  cluster.decode();
  cluster.config.scheduler.retries_max = 2;
  cluster.start();
  const HttpAnswer answer = http_post(cluster.address(), "/v1/completions", completion(8));
  CHECK(answer.status == 502);
  CHECK(prefill.counts().prefills == 3);
}

TEST_CASE("want of room is waited for, and is an overload when it lasts") {
  auto refusals = std::make_shared<std::atomic<int>>(6);  // More than retries_max
  Script full;
  full.prompt = [refusals](const link::Leg&) {
    return refusals->fetch_sub(1) > 0 ? Fate::kFail : Fate::kGoOn;
  };
  full.failure = ErrorCode::kResourceExhausted;
  Cluster cluster;
  cluster.prefill();
  FakeWorker& decode = cluster.decode(full);
  cluster.config.scheduler.queue_deadline = Milliseconds(2000);
  cluster.start();
  CHECK(http_post(cluster.address(), "/v1/completions", completion(8)).status == 200);
  CHECK(decode.counts().decodes == 7);
  *refusals = 1000;
  HttpAnswer answer = http_post(cluster.address(), "/v1/completions", completion(8));
  CHECK(answer.status == 503);
  CHECK(answer.headers.contains("retry-after"));
  CHECK(decode.counts().decodes < 30);
}

TEST_CASE("what can never succeed is not tried again") {
  Script never;
  never.prompt = [](const link::Leg&) { return Fate::kRefuseForGood; };
  never.failure = ErrorCode::kInvalidArgument;
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill(never);
  FakeWorker& decode = cluster.decode();
  cluster.start();
  CHECK(http_post(cluster.address(), "/v1/completions", completion(8)).status == 400);
  CHECK(prefill.counts().prefills == 1);
  CHECK(eventually([&] { return decode.counts().cancels == 1; }));
}

TEST_CASE("prefill workers that are all lost are replaced by a decode worker") {
  Cluster cluster;
  cluster.prefill(once_at_prompt(Fate::kDie));
  cluster.decode();
  cluster.start();
  CHECK(
      http_post(cluster.address(), "/v1/completions", completion(8)).json()["choices"][0]["text"] ==
      reference(completion(8)));
  CHECK(http_get(cluster.address(), "/health").status == 503);
}

TEST_CASE("two routers share the workers, and the end of one leaves the other's requests alone") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode({.step_time = 2ms});
  cluster.decode({.step_time = 2ms});
  cluster.start();
  auto other = std::make_unique<Router>(cluster.config);
  REQUIRE(other->start().ok());
  REQUIRE(eventually([&] { return other->ready(); }));
  std::vector<std::unique_ptr<HttpClient>> ours, theirs;
  for (int i = 0; i < 12; ++i) {
    json request = completion(40, true);
    request["seed"] = i;
    ours.push_back(std::make_unique<HttpClient>(cluster.address()));
    ours.back()->send_post("/v1/completions", request.dump());
    theirs.push_back(std::make_unique<HttpClient>(other->address()));
    theirs.back()->send_post("/v1/completions", request.dump());
  }
  theirs.front()->read_frames(2);
  other->stop();
  other.reset();
  for (auto& client : ours) {
    const HttpAnswer answer = client->read_answer();
    CHECK(answer.status == 200);
    CHECK(answer.body.find("\"error\"") == std::string::npos);
    CHECK(sse_frames(answer.body).back() == "[DONE]");
  }
}

TEST_CASE("workers of another model are refused with the reason") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  FakeWorker::Options other;
  other.name = "d9";
  other.model_digest = "another";
  cluster.add(other);
  FakeWorker::Options tokenizer;
  tokenizer.name = "p9";
  tokenizer.role = Role::kPrefill;
  tokenizer.tokenizer_digest = "another";
  cluster.add(tokenizer);
  cluster.start();
  int refused = 0;
  const json list = http_get(cluster.admin(), "/v1/workers").json();
  for (const auto& worker : list["data"]) {
    if (worker["state"] != "refused") continue;
    ++refused;
    CHECK(worker["reason"].get<std::string>().find("digest") != std::string::npos);
  }
  CHECK(refused >= 2);
}

TEST_CASE("a drained worker gets nothing new until it is resumed") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  FakeWorker& second = cluster.decode();
  cluster.start();
  HttpClient admin(cluster.admin());
  CHECK(admin.post("/v1/workers/d1/drain", "").status == 200);
  for (int i = 0; i < 6; ++i)
    CHECK(http_post(cluster.address(), "/v1/completions", completion(4)).status == 200);
  CHECK(second.counts().decodes == 0);
  CHECK(second.counts().actions == std::vector<std::string>{"drain"});
  HttpClient again(cluster.admin());
  CHECK(again.post("/v1/workers/d1/resume", "").status == 200);
  CHECK(eventually([&] {
    http_post(cluster.address(), "/v1/completions", completion(4));
    return second.counts().decodes > 0;
  }));
  HttpClient unknown(cluster.admin());
  CHECK(unknown.post("/v1/workers/nobody/drain", "").status == 404);
}

TEST_CASE("a worker that comes back takes part again") {
  Cluster cluster;
  cluster.prefill();
  FakeWorker& decode = cluster.decode();
  const std::string address = decode.address();
  cluster.start();
  CHECK(http_post(cluster.address(), "/v1/completions", completion(4)).status == 200);
  decode.die();
  CHECK(eventually([&] { return http_get(cluster.address(), "/health").status == 503; }));
  FakeWorker::Options reborn;
  reborn.name = "d0";
  reborn.tokenizer_digest = cluster.tokenizer_digest;
  reborn.listen = address;
  cluster.workers.push_back(std::make_unique<FakeWorker>(reborn, cluster.hand_over));
  CHECK(eventually([&] { return http_get(cluster.address(), "/health").status == 200; }));
  CHECK(http_post(cluster.address(), "/v1/completions", completion(4)).status == 200);
}

}  // namespace
}  // namespace tandem::router

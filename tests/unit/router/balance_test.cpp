// Proves that the pipeline is bounded and says where it is full: whichever stage is slow, what is
// inside stays within its limits, and refusals name it. And that predictions and decisions can be
// looked at afterwards.
#include <doctest/doctest.h>

#include <fstream>

#include "cluster.h"
#include "scheduler/decision_log.h"

namespace tandem::router {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

double stage(Cluster& cluster, const std::string& what, const std::string& name) {
  return cluster.metric("tandem_stage_" + what + "{stage=\"" + name + "\"}");
}

struct Slow {
  const char* stage;
  std::chrono::microseconds Script::*time;
};

TEST_CASE("with any one stage slow, what is inside stays bounded and refusals name the stage") {
  const Slow cases[] = {{"prefill", &Script::prompt_time},
                        {"stream", &Script::stream_time},
                        {"land", &Script::land_time},
                        {"join", &Script::join_time},
                        {"decode", &Script::step_time}};
  for (const Slow& slow : cases) {
    CAPTURE(slow.stage);
    Script script;
    script.prompt_time = script.stream_time = script.land_time = script.join_time = 2ms;
    script.step_time = 1ms;
    script.*slow.time = 100ms;
    Cluster cluster;
    FakeWorker::Options worker;
    worker.script = script;
    worker.slots = 4;
    worker.role = Role::kPrefill;
    cluster.add(worker);
    worker.role = Role::kDecode;
    worker.slots = 8;
    cluster.add(worker);
    cluster.config.scheduler.queue_max = 4;
    cluster.config.router.tokenizer_threads = 1;
    cluster.start();
    // Limits follow the workers, once a second.
    REQUIRE(eventually([&] { return stage(cluster, "limit", "decode") == 8; }));
    std::vector<std::unique_ptr<HttpClient>> clients;
    const auto send = [&](int count) {
      for (int i = 0; i < count; ++i) {
        clients.push_back(std::make_unique<HttpClient>(cluster.address()));
        clients.back()->send_post("/v1/completions", completion(12).dump());
      }
    };
    // As many as fit; when they have come to the slow stage, more.
    send(12);
    CHECK(eventually([&] { return stage(cluster, "depth", slow.stage) >= 4; }));
    send(48);
    const std::string reason = std::string("stage_") + slow.stage;
    int refused = 0, named = 0, served = 0;
    for (auto& client : clients) {
      HttpAnswer answer = client->read_answer();
      served += answer.status == 200;
      if (answer.status == 200) continue;
      ++refused;
      REQUIRE(answer.status == 503);
      named += answer.body.find(reason) != std::string::npos;
      const int seconds = std::stoi(answer.headers.at("retry-after"));
      const int ms = std::stoi(answer.headers.at("retry-after-ms"));
      CHECK(seconds >= 1);
      CHECK(ms <= seconds * 1000);
      CHECK(ms > (seconds - 1) * 1000);
    }
    CHECK(served >= 12);
    CHECK(refused >= 20);
    CHECK(named * 2 > refused);  // Others may be full for a moment on a slow machine
    CHECK(cluster.metric("tandem_refused_total{reason=\"" + reason + "\"}") >= named);
    for (const char* name : {"received", "tokenised", "queued", "prefill", "stream", "land", "join",
                             "decode", "write"}) {
      CAPTURE(name);
      CHECK(eventually([&] { return stage(cluster, "depth", name) == 0; }));
      CHECK(stage(cluster, "limit", name) > 0);
    }
    CHECK(stage(cluster, "served_total", "decode") >= served);
    CHECK(stage(cluster, "service_seconds_count", slow.stage) >= served);
  }
}

TEST_CASE("no more is dispatched than a stage's limit has room for") {
  auto inside = std::make_shared<std::atomic<int>>(0);
  Script script;
  script.stream_time = 10ms;
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill(script);
  FakeWorker& decode = cluster.decode(script);
  cluster.config.stages.stream = 2;
  cluster.config.router.sweep = 20ms;
  cluster.start();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<HttpClient>(cluster.address()));
    clients.back()->send_post("/v1/completions", completion(3).dump());
  }
  int most = 0;
  const bool done = eventually([&] {
    most = std::max(most, prefill.counts().active);
    return decode.counts().decodes == 12 && decode.counts().active == 0;
  });
  CHECK(done);
  CHECK(most <= 2);
  for (auto& client : clients) CHECK(client->read_answer().status == 200);
}

TEST_CASE("computed KV that nobody has consumed stays within its limit") {
  Script script;
  script.stream_time = 5ms;
  Cluster cluster;
  cluster.prefill(script);
  cluster.decode(script);
  cluster.config.scheduler.unconsumed_tokens_max = 256;
  cluster.config.router.sweep = 20ms;
  cluster.start();
  json request = completion(3);
  request["prompt"] = json::array();
  for (int i = 0; i < 100; ++i) request["prompt"].push_back(300 + i);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<HttpClient>(cluster.address()));
    clients.back()->send_post("/v1/completions", request.dump());
  }
  double most = 0;
  CHECK(eventually([&] {
    most = std::max(most, cluster.metric("tandem_unconsumed_tokens"));
    return stage(cluster, "depth", "queued") == 0 && cluster.idle();
  }));
  CHECK(most > 0);
  CHECK(most <= 256);
  CHECK(cluster.metric("tandem_unconsumed_tokens") == 0);
  CHECK(cluster.metric("tandem_unconsumed_tokens_max") == 256);
  for (auto& client : clients) CHECK(client->read_answer().status == 200);
  // A prompt that is longer than the limit passes alone.
  for (int i = 0; i < 400; ++i) request["prompt"].push_back(300);
  CHECK(http_post(cluster.address(), "/v1/completions", request).status == 200);
}

TEST_CASE("clients that do not read hold up others only when the stage `write` is full of them") {
  Cluster cluster;
  cluster.config.model.context = 200000;
  FakeWorker::Options big;
  big.context = 200000;
  big.kv_tokens = 1 << 20;
  big.slots = 3;
  big.script.step_time = 100us;
  cluster.add(big);
  big.role = Role::kPrefill;
  cluster.add(big);
  cluster.config.stages.write = 1;
  cluster.config.scheduler.queue_max = 1;
  cluster.config.router.sweep = 20ms;
  cluster.start();
  HttpClient deaf(cluster.address(), 2048);
  deaf.send_post("/v1/completions", completion(150000, true).dump());
  int in_a_row = 0;  // Any write is in the stage for a moment
  REQUIRE(eventually(
      [&] {
        in_a_row = stage(cluster, "depth", "write") == 1 ? in_a_row + 1 : 0;
        return in_a_row == 40;
      },
      60s));
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpClient>(cluster.address()));
    clients.back()->send_post("/v1/completions", completion(3).dump());
    CHECK(eventually([&] { return stage(cluster, "depth", "queued") == i + 1; }));
  }
  const HttpAnswer refused = http_post(cluster.address(), "/v1/completions", completion(3));
  CHECK(refused.status == 503);
  CHECK(refused.body.find("stage_write") != std::string::npos);
  deaf.close();
  for (auto& client : clients) CHECK(client->read_answer().status == 200);
}

TEST_CASE("a door that is full says which one") {
  Script slow;
  slow.prompt_time = 200ms;
  Cluster cluster;
  cluster.prefill(slow);
  cluster.decode();
  cluster.config.stages.tokenised = 3;
  cluster.start();
  json batch = completion(2);
  batch["prompt"] = json::array({"a", "b", "c", "d"});
  HttpAnswer answer = http_post(cluster.address(), "/v1/completions", batch);
  CHECK(answer.status == 503);
  CHECK(answer.body.find("stage_tokenised") != std::string::npos);
  CHECK(answer.headers.contains("retry-after-ms"));
  batch["prompt"].erase(0);
  CHECK(http_post(cluster.address(), "/v1/completions", batch).status == 200);
}

TEST_CASE("objectives of a client are checked before anything is done for it") {
  Cluster cluster;
  FakeWorker& prefill = cluster.prefill();
  cluster.decode();
  cluster.start();
  const auto post = [&](const std::string& headers) {
    HttpClient client(cluster.address());
    client.send_post("/v1/completions", completion(3).dump(), headers);
    return client.read_answer();
  };
  const HttpAnswer bad = post("x-slo-ttft-ms: yesterday\r\n");
  CHECK(bad.status == 400);
  CHECK(bad.json()["error"]["param"] == "x-slo-ttft-ms");
  CHECK(post("X-Deadline-Ms: -1\r\n").status == 400);
  CHECK(prefill.counts().prefills == 0);
  CHECK(post("X-SLO-TTFT-Ms: 500\r\nX-SLO-TPOT-Ms: 12.5\r\nX-Tenant: a\r\nX-Priority: 3\r\n")
            .status == 200);
  CHECK(prefill.counts().legs.at(0).tpot_slo_us == 12500);
}

TEST_CASE("a client's own deadline ends its request") {
  Script slow;
  slow.prompt_time = 5s;
  Cluster cluster;
  cluster.prefill(slow);
  FakeWorker& decode = cluster.decode();
  cluster.start();
  HttpClient client(cluster.address());
  client.send_post("/v1/completions", completion(3).dump(), "X-Deadline-Ms: 200\r\n");
  const HttpAnswer answer = client.read_answer();
  CHECK(answer.status == 504);
  CHECK(answer.json()["error"]["code"] == "timeout");
  CHECK(eventually([&] { return decode.counts().cancels == 1; }));
}

TEST_CASE("predictions stand beside what was measured") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  const double before = cluster.metric("tandem_ttft_predicted_ratio_count");
  HttpClient client(cluster.address());
  client.send_post("/v1/completions", completion(3).dump(), "X-Request-Id: predicted\r\n");
  CHECK(client.read_answer().status == 200);
  const json record = http_get(cluster.address(), "/v1/requests/predicted").json();
  CHECK(record["predicted_ttft_ms"].get<double>() > 0);
  CHECK(record.contains("predicted_ttft_bound_ms"));
  CHECK(record["ttft_ms"].get<double>() > 0);
  CHECK(cluster.metric("tandem_ttft_predicted_ratio_count") == before + 1);
  CHECK(cluster.metric("tandem_ttft_predictions_total{within=\"true\"}") +
            cluster.metric("tandem_ttft_predictions_total{within=\"false\"}") ==
        before + 1);
}

TEST_CASE("what workers measure reaches the scheduler") {
  const auto predicted = [](double ms) {
    Script script;
    for (int i = 1; i <= 16; ++i) script.samples.push_back({.prompt_tokens = 16 * i, .ms = ms * i});
    Cluster cluster;
    cluster.config.scheduler.policy = "slack";
    cluster.prefill(script);
    cluster.decode();
    cluster.start();
    HttpClient client(cluster.address());
    client.send_post("/v1/completions", completion(3).dump(), "X-Request-Id: measured\r\n");
    CHECK(client.read_answer().status == 200);
    return http_get(cluster.address(), "/v1/requests/measured")
        .json()["predicted_ttft_ms"]
        .get<double>();
  };
  CHECK(predicted(40) > predicted(1));
}

TEST_CASE("decisions are logged with what became of them, within bounds") {
  const std::string path = "var_decisions_" + std::to_string(getpid()) + ".jsonl";
  const auto read = [&](const std::string& file) {
    std::ifstream in(file);
    auto records = scheduler::read_decisions(in, file);
    REQUIRE_MESSAGE(records.ok(), records.status().to_string());
    return *records;
  };
  {
    Cluster cluster;
    cluster.prefill();
    cluster.decode();
    cluster.config.router.decision_log = path;
    cluster.start();
    HttpClient client(cluster.address());
    json request = completion(5);
    request["prompt"] = "a secret prompt";
    request["user"] = "a secret user";
    client.send_post("/v1/completions", request.dump(), "X-Request-Id: logged\r\n");
    CHECK(client.read_answer().status == 200);
  }
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  CHECK(text.find("secret") == std::string::npos);
  const auto records = read(path);
  REQUIRE(records.size() == 1);
  CHECK(records[0].request == "logged");
  CHECK(records[0].path == "remote");
  CHECK(records[0].prefill == "p0");
  CHECK(records[0].decode == "d0");
  CHECK(records[0].outcome == "ok");
  CHECK(records[0].output_tokens == 5);
  CHECK(records[0].ttft_ms > 0);
  CHECK(records[0].tpot_ms > 0);
  CHECK(records[0].candidates.size() == 2);
  {
    auto file = DecisionFile::open(path, 4 * static_cast<int64_t>(text.size()));
    REQUIRE(file.ok());
    for (int i = 0; i < 10; ++i) (*file)->write(records[0]);
  }
  CHECK(read(path).size() == 2);
  CHECK(read(path + ".1").size() == 4);
  CHECK(std::remove(path.c_str()) == 0);
  CHECK(std::remove((path + ".1").c_str()) == 0);
  CHECK(!DecisionFile::open("/nowhere/at/all", 1).ok());
}

}  // namespace
}  // namespace tandem::router

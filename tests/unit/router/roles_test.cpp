// Proves that roles change, workers return and models agree without a request being lost, and that
// what cannot be done is said clearly.
#include <doctest/doctest.h>

#include <atomic>

#include "cluster.h"
#include "router/model_agreement.h"

namespace tandem::router {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

HttpAnswer change(Cluster& cluster, const std::string& worker, const std::string& role) {
  return HttpClient(cluster.admin()).post("/v1/workers/" + worker + "/role/" + role, "");
}

json worker(Cluster& cluster, const std::string& name) {
  const json list = http_get(cluster.admin(), "/v1/workers").json();
  for (const json& entry : list["data"])
    if (entry["name"] == name) return entry;
  return {};
}

double moves(Cluster& cluster, const std::string& to, const std::string& outcome) {
  return std::max(0.0, cluster.metric("tandem_role_moves_total{outcome=\"" + outcome + "\",to=\"" +
                                      to + "\"}"));
}

std::string text_of(const json& request) {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  return http_post(cluster.address(), "/v1/completions", request).json()["choices"][0]["text"];
}

TEST_CASE("a worker that is told so changes its role, and its requests go on elsewhere") {
  Cluster cluster;
  cluster.prefill();
  FakeWorker& first = cluster.decode({.step_time = 3ms});
  FakeWorker& second = cluster.decode({.step_time = 3ms});
  cluster.config.scheduler.retries_max = 0;  // It is no loss
  cluster.start();
  const double before = moves(cluster, "prefill", "done");
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<HttpClient>(cluster.address()));
    clients.back()->send_post("/v1/completions", completion(40).dump());
  }
  CHECK(eventually([&] { return first.counts().decodes + second.counts().decodes == 6; }));
  CHECK(first.counts().active > 0);
  CHECK(change(cluster, "d0", "prefill").status == 200);
  CHECK(eventually([&] { return worker(cluster, "d0")["role"] == "prefill"; }));
  CHECK(eventually([&] { return worker(cluster, "d0")["state"] == "ready"; }));
  CHECK(first.role() == Role::kPrefill);
  const std::string whole = text_of(completion(40));
  for (auto& client : clients) CHECK(client->read_answer().json()["choices"][0]["text"] == whole);
  CHECK(moves(cluster, "prefill", "done") == before + 1);
  for (int i = 0; i < 6; ++i)
    CHECK(http_post(cluster.address(), "/v1/completions", completion(40))
              .json()["choices"][0]["text"] == whole);
  CHECK(first.counts().prefills > 0);
  CHECK(second.counts().active == 0);
  // And back again.
  CHECK(change(cluster, "d0", "decode").status == 200);
  CHECK(eventually([&] { return worker(cluster, "d0")["role"] == "decode"; }));
}

TEST_CASE("a pair becomes two coupled workers, one after the other") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  for (const char* name : {"p0", "d0"}) {
    CHECK(change(cluster, name, "coupled").status == 200);
    CHECK(eventually([&] { return worker(cluster, name)["role"] == "coupled"; }));
    CHECK(http_post(cluster.address(), "/v1/completions", completion(4)).status == 200);
  }
  CHECK(http_get(cluster.address(), "/health").status == 200);
}

TEST_CASE("role changes that cannot be are refused with the reason") {
  Cluster cluster;
  cluster.prefill();
  FakeWorker& decode = cluster.decode();
  cluster.decode({.role_change = Fate::kHang});
  cluster.start();
  HttpAnswer answer = change(cluster, "nobody", "prefill");
  CHECK(answer.status == 404);
  CHECK(answer.body.find("nobody") != std::string::npos);
  answer = change(cluster, "d0", "judge");
  CHECK(answer.status == 400);
  CHECK(answer.body.find("partitioned") != std::string::npos);
  answer = change(cluster, "p0", "decode");
  CHECK(answer.status == 409);
  CHECK(answer.body.find("no worker would be left that computes prompts") != std::string::npos);
  CHECK(change(cluster, "p0", "prefill").status == 200);  // It is one
  CHECK(change(cluster, "d1", "prefill").status == 200);
  answer = change(cluster, "d1", "decode");
  CHECK(answer.status == 409);
  CHECK(answer.body.find("already on its way") != std::string::npos);
  CHECK(worker(cluster, "d1")["state"] == "switching");
  CHECK(worker(cluster, "d1")["switching_to"] == "prefill");
  answer = change(cluster, "d0", "prefill");  // d1 is on its way
  CHECK(answer.status == 409);
  CHECK(answer.body.find("generates tokens") != std::string::npos);
  decode.die();
  CHECK(eventually([&] { return worker(cluster, "d0")["state"] == "connecting"; }));
  answer = change(cluster, "d0", "coupled");
  CHECK(answer.status == 503);
  CHECK(answer.body.find("not connected") != std::string::npos);
}

TEST_CASE("a worker that refuses, hangs or dies on the way is not waited for") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.decode({.role_change = Fate::kFail});
  cluster.decode({.role_change = Fate::kHang});
  cluster.decode({.role_change = Fate::kDie});
  cluster.config.router.role_deadline = 300ms;
  cluster.start();
  const double failed = moves(cluster, "prefill", "failed");
  const double overdue = moves(cluster, "prefill", "timeout");
  const double lost = moves(cluster, "prefill", "lost");
  for (const char* name : {"d1", "d2", "d3"}) CHECK(change(cluster, name, "prefill").status == 200);
  CHECK(eventually([&] { return moves(cluster, "prefill", "failed") == failed + 1; }));
  CHECK(eventually([&] { return moves(cluster, "prefill", "timeout") == overdue + 1; }));
  CHECK(eventually([&] { return moves(cluster, "prefill", "lost") == lost + 1; }));
  CHECK(worker(cluster, "d1")["role"] == "decode");
  CHECK(worker(cluster, "d1")["role_error"] == "scripted");
  CHECK(worker(cluster, "d1")["state"] == "ready");
  CHECK(http_post(cluster.address(), "/v1/completions", completion(4)).status == 200);
}

TEST_CASE("what an autoscaler reads is there") {
  Cluster cluster;
  cluster.prefill();
  cluster.decode();
  cluster.start();
  CHECK(eventually(
      [&] { return cluster.metric("tandem_recommended_replicas{role=\"prefill\"}") >= 0; }));
  const json router = http_get(cluster.admin(), "/v1/workers").json()["router"];
  CHECK(router["recommended"].contains("prefill"));
  CHECK(router["recommended"].contains("decode"));
  CHECK(router["recommended"].contains("reason"));
}

TEST_CASE("a stream whose only decode worker dies goes on when it has come back") {
  Cluster cluster;
  cluster.prefill();
  auto fired = std::make_shared<std::atomic<bool>>(false);
  Script dies;
  dies.token = [fired](const link::Leg&, int emitted) {
    return emitted == 4 && !fired->exchange(true) ? Fate::kDie : Fate::kGoOn;
  };
  FakeWorker& decode = cluster.decode(dies);
  const std::string address = decode.address();
  cluster.start();
  const std::string whole = text_of(completion(12));
  HttpClient client(cluster.address());
  client.send_post("/v1/completions", completion(12).dump());
  CHECK(eventually([&] { return worker(cluster, "d0")["state"] == "connecting"; }));
  FakeWorker::Options reborn;
  reborn.name = "d0";
  reborn.tokenizer_digest = cluster.tokenizer_digest;
  reborn.listen = address;
  cluster.workers.push_back(std::make_unique<FakeWorker>(reborn, cluster.hand_over));
  const HttpAnswer answer = client.read_answer();
  REQUIRE(answer.status == 200);
  CHECK(answer.json()["choices"][0]["text"] == whole);
  CHECK(fired->load());
}

link::Hello build(const std::string& model, const std::string& layout = "l") {
  link::Hello hello;
  hello.engine = "sim";
  hello.chunk_tokens = 256;
  hello.model_digest = model;
  hello.kv_layout_digest = layout;
  return hello;
}

TEST_CASE("the configuration decides on the model, then the majority does") {
  ModelAgreement by_file({"sim", "right", 256}, 3);
  const Status wrong = by_file.vote(0, build("wrong"));
  CHECK(wrong.message() == "model digest is wrong here, right in the router's model file");
  CHECK(by_file.vote(1, build("right")).ok());
  link::Hello other = build("right");
  other.engine = "llama";
  CHECK(by_file.vote(2, other).message().find("engine") == 0);
  other = build("right");
  other.chunk_tokens = 128;
  CHECK(by_file.vote(2, other).message().find("chunk grid") == 0);

  ModelAgreement open({"sim", "", 256}, 4);
  CHECK(open.vote(0, build("wrong")).ok());  // Alone, it is the majority
  const uint64_t before = open.generation();
  CHECK(!open.vote(1, build("right")).ok());
  CHECK(!open.vote(1, build("right")).ok());  // Asking twice is one vote
  CHECK(open.generation() == before);
  CHECK(open.vote(2, build("right")).ok());
  CHECK(open.generation() == before + 1);
  CHECK(!open.agrees(build("wrong")));
  CHECK(open.vote(1, build("right")).ok());
  CHECK(!open.vote(3, build("right", "another layout")).ok());
  // A new model takes over when nobody is left who runs the old one.
  open.withdraw(1);
  open.withdraw(2);
  open.withdraw(3);
  CHECK(open.vote(0, build("next")).ok());
  CHECK(open.generation() == before + 2);
}

TEST_CASE("a wrong worker that comes first does not lock out the right ones") {
  Cluster cluster;
  const std::string prefill = cluster.prefill().address();
  const std::string decode = cluster.decode().address();
  FakeWorker::Options odd;
  odd.name = "d9";
  odd.model_digest = "another";
  cluster.add(odd);
  cluster.workers[0]->die();
  cluster.workers[1]->die();
  Router router(cluster.config);
  REQUIRE(router.start().ok());
  const auto state = [&](const std::string& name) {
    const json list = http_get(router.admin_address(), "/v1/workers").json();
    for (const json& entry : list["data"])
      if (entry["name"] == name) return entry["state"].get<std::string>();
    return std::string();
  };
  CHECK(eventually([&] { return state("d9") == "ready"; }));
  for (const auto& [name, role, address] :
       {std::tuple{"p0", Role::kPrefill, prefill}, std::tuple{"d0", Role::kDecode, decode}}) {
    FakeWorker::Options right;
    right.name = name;
    right.role = role;
    right.listen = address;
    right.tokenizer_digest = cluster.tokenizer_digest;
    cluster.workers.push_back(std::make_unique<FakeWorker>(right, cluster.hand_over));
  }
  CHECK(eventually([&] { return state("p0") == "ready" && state("d0") == "ready"; }));
  CHECK(eventually([&] { return state("d9") == "refused"; }));
  CHECK(http_post(router.address(), "/v1/completions", completion(4)).status == 200);
}

}  // namespace
}  // namespace tandem::router

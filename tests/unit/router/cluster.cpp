#include "cluster.h"

#include <doctest/doctest.h>

#include <future>

#include "engine/tokenizer.h"

namespace tandem::router {

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds at_most) {
  const TimePoint until = SystemClock::get().now() + at_most;
  std::promise<void> never;
  const std::future<void> pause = never.get_future();
  while (!condition()) {
    if (SystemClock::get().now() >= until) return false;
    pause.wait_for(std::chrono::milliseconds(2));
  }
  return true;
}

Cluster::Cluster() {
  config.model.engine = "sim";
  config.model.name = "sim";
  config.router.listen = "127.0.0.1:0";
  config.router.admin = "127.0.0.1:0";
  config.link.heartbeat = Milliseconds(100);
  // These tests prove the router, not the policy: requests go the longest way.
  config.scheduler.policy = "static_split";
  tokenizer_digest = (*make_tokenizer(config))->digest();
}

Cluster::~Cluster() {
  CHECK(eventually([this] { return idle(); }));
  routers_.clear();
}

FakeWorker& Cluster::add(Role role, Script script) {
  FakeWorker::Options options;
  options.role = role;
  options.script = std::move(script);
  return add(std::move(options));
}

PoolConfig& Cluster::pool_of(Role role) {
  return role == Role::kPrefill       ? config.prefill
         : role == Role::kDecode      ? config.decode
         : role == Role::kPartitioned ? config.partitioned
                                      : config.coupled;
}

FakeWorker& Cluster::add(FakeWorker::Options options) {
  PoolConfig& pool = pool_of(options.role);
  if (options.name.empty())
    options.name = std::string(1, role_name(options.role)[0]) + std::to_string(pool.workers.size());
  if (options.tokenizer_digest.empty()) options.tokenizer_digest = tokenizer_digest;
  workers.push_back(std::make_unique<FakeWorker>(std::move(options), hand_over));
  pool.workers.push_back("tcp://" + workers.back()->address());
  return *workers.back();
}

Router& Cluster::start() {
  routers_.push_back(std::make_unique<Router>(config));
  const Status status = routers_.back()->start();
  REQUIRE_MESSAGE(status.ok(), status.to_string());
  const std::string address = routers_.back()->address();
  const bool seen = eventually([&] {
    const nlohmann::json list = http_get(address, "/v1/workers").json();
    size_t settled = 0;
    for (const auto& worker : list["data"])
      settled += worker["state"] == "ready" || worker["state"] == "refused";
    return settled == workers.size();
  });
  REQUIRE(seen);
  return *routers_.back();
}

bool Cluster::idle() {
  for (const auto& router : routers_) {
    const auto state = http_get(router->admin_address(), "/v1/workers").json()["router"];
    if (state["queued"] != 0 || state["running"] != 0 || state["requests"] != 0) return false;
  }
  for (const auto& worker : workers)
    if (worker->counts().active != 0) return false;
  return true;
}

double Cluster::metric(const std::string& series) {
  const std::string text = http_get(admin(), "/metrics").body;
  const size_t at = ("\n" + text).find("\n" + series);
  if (at == std::string::npos) return -1;
  const size_t space = text.find(' ', at + series.size());
  return std::strtod(text.c_str() + space, nullptr);
}

nlohmann::json completion(int max_tokens, bool stream) {
  return {{"model", "sim"},
          {"prompt", "hello world"},
          {"max_tokens", max_tokens},
          {"seed", 7},
          {"stream", stream}};
}

}  // namespace tandem::router

// Cluster: a router and fake workers in one process, for tests. Starts, becomes ready, and at its
// end checks that everything has come back to idle.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fake_worker.h"
#include "http_client.h"
#include "router/router.h"

namespace tandem::router {

// True as soon as `condition` holds; false after `at_most`.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds at_most = std::chrono::seconds(10));

class Cluster {
 public:
  Cluster();
  ~Cluster();

  FakeWorker& prefill(Script script = {}) { return add(Role::kPrefill, std::move(script)); }
  FakeWorker& decode(Script script = {}) { return add(Role::kDecode, std::move(script)); }
  FakeWorker& coupled(Script script = {}) { return add(Role::kCoupled, std::move(script)); }
  FakeWorker& add(Role role, Script script);
  FakeWorker& add(FakeWorker::Options options);
  // Starts the router (another one, when called again) and waits until it sees its workers.
  Router& start();
  PoolConfig& pool_of(Role role);

  std::string address(size_t router = 0) const { return routers_[router]->address(); }
  std::string admin(size_t router = 0) const { return routers_[router]->admin_address(); }
  // Nothing queued or running in the routers, no leg left on the workers.
  bool idle();
  // The value of a metric's line that begins so, over all routers of the process.
  double metric(const std::string& series);

  Config config;
  std::string tokenizer_digest;
  HandOver hand_over;
  std::vector<std::unique_ptr<FakeWorker>> workers;

 private:
  std::vector<std::unique_ptr<Router>> routers_;
};

// A completion request that any test may change.
nlohmann::json completion(int max_tokens = 8, bool stream = false);

}  // namespace tandem::router

// Proves that every file under configs/ loads, and says what its comments promise. Runs in the
// checkout's root.
#include <doctest/doctest.h>

#include <filesystem>

#include "common/config.h"

using namespace tandem;

namespace {
Config load(const std::string& name) {
  auto config = load_config("configs/" + name);
  REQUIRE_MESSAGE(config.ok(), config.status().to_string());
  return *config;
}
}  // namespace

TEST_CASE("every shipped configuration loads and survives a dump") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    CAPTURE(entry.path().string());
    const auto config = load_config(entry.path());
    REQUIRE_MESSAGE(config.ok(), config.status().to_string());
    const auto again = parse_config(dump_config(*config), "dump");
    REQUIRE_MESSAGE(again.ok(), again.status().to_string());
    CHECK(dump_config(*again) == dump_config(*config));
  }
  CHECK(files >= 5);
}

TEST_CASE("local.yaml is one prefill and one decode worker") {
  const Config config = load("local.yaml");
  CHECK(config.prefill.replicas == 1);
  CHECK(config.decode.replicas == 1);
  CHECK(config.coupled.replicas == 0);
}

TEST_CASE("two_prefill.yaml is 2:1, ratio.yaml 3:5 of eight") {
  CHECK(load("two_prefill.yaml").prefill.replicas == 2);
  CHECK(load("two_prefill.yaml").decode.replicas == 1);
  CHECK(load("ratio.yaml").prefill.replicas == 3);
  CHECK(load("ratio.yaml").decode.replicas == 5);
}

TEST_CASE("coupled.yaml has as many workers and threads as local.yaml, and the same model") {
  const Config coupled = load("coupled.yaml");
  const Config local = load("local.yaml");
  CHECK(coupled.coupled.replicas == local.prefill.replicas + local.decode.replicas);
  CHECK(coupled.coupled.threads == local.decode.threads);
  CHECK(coupled.model.name == local.model.name);
  CHECK(coupled.model.context == local.model.context);
}

TEST_CASE("sim_cluster.yaml is 16 and 16 simulated workers with room for 2,000 streams") {
  const Config config = load("sim_cluster.yaml");
  CHECK(config.model.engine == "sim");
  CHECK(config.prefill.replicas == 16);
  CHECK(config.decode.replicas == 16);
  CHECK(config.decode.replicas * config.decode.slots >= 2000);
  CHECK(config.sim.workers_per_process > 1);
}

// Proves what `tandem up` starts for a configuration, the command-line words, and the table of
// workers.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/arguments.h"
#include "cli/plan.h"
#include "cli/ports.h"
#include "cli/worker_table.h"
#include "common/random.h"

using namespace tandem;
using namespace tandem::cli;

namespace {

Config config_of(const std::string& text) {
  auto config = parse_config(text, "t.yaml");
  REQUIRE_MESSAGE(config.ok(), config.status().to_string());
  return *config;
}

// Ports 1, 2, 3, ...
FreePort counting() {
  return [next = uint16_t{0}](const std::string&) mutable -> Result<uint16_t> { return ++next; };
}

Result<Plan> plan_of(const std::string& text, UpOptions options = {}) {
  options.config_file = "t.yaml";
  return make_plan(config_of(text), options, counting());
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

}  // namespace

TEST_CASE("workers start before the router, which is told where they are") {
  const auto plan = plan_of("pools: { prefill: { replicas: 2 }, decode: { replicas: 1 } }");
  REQUIRE(plan.ok());
  REQUIRE(plan->processes.size() == 4);
  CHECK(plan->processes[0].program == "tandem-prefill-worker");
  CHECK(joined(plan->processes[0].args) ==
        "-c t.yaml --role prefill --name p0 --listen 127.0.0.1:1");
  CHECK(joined(plan->processes[2].args) ==
        "-c t.yaml --role decode --name d0 --listen 127.0.0.1:3");
  CHECK(plan->processes[3].name == "router");
  CHECK(joined(plan->processes[3].args) ==
        "-c t.yaml --set pools.prefill.workers=[\"tcp://127.0.0.1:1\",\"tcp://127.0.0.1:2\"] "
        "--set pools.decode.workers=[\"tcp://127.0.0.1:3\"]");
  CHECK(plan->listen == "127.0.0.1:8080");
}

TEST_CASE("what the router is told parses as configuration") {
  const auto plan = plan_of("pools: { prefill: { replicas: 2 }, decode: { replicas: 1 } }");
  REQUIRE(plan.ok());
  std::vector<std::string> overrides;
  for (const std::string& word : plan->processes.back().args) {
    if (word.find('=') != std::string::npos) overrides.push_back(word);
  }
  const auto config = parse_config("", "t", overrides);
  REQUIRE_MESSAGE(config.ok(), config.status().to_string());
  CHECK(config->prefill.workers ==
        std::vector<std::string>{"tcp://127.0.0.1:1", "tcp://127.0.0.1:2"});
}

TEST_CASE("overrides reach every process") {
  const auto plan =
      plan_of("pools: { decode: { replicas: 1 } }", {.overrides = {"log.level=debug"}});
  REQUIRE(plan.ok());
  for (const ProcessSpec& process : plan->processes) {
    CHECK(joined(process.args).starts_with("-c t.yaml --set log.level=debug"));
  }
}

TEST_CASE("sim workers share processes") {
  const auto plan = plan_of(
      "model: { engine: sim }\nsim: { workers_per_process: 3 }\n"
      "pools: { decode: { replicas: 4 } }");
  REQUIRE(plan.ok());
  REQUIRE(plan->processes.size() == 3);
  CHECK(plan->processes[0].name == "d0-d2");
  CHECK(joined(plan->processes[0].args) ==
        "-c t.yaml --role decode --name d0,d1,d2 --listen 127.0.0.1:1,127.0.0.1:2,127.0.0.1:3");
  CHECK(plan->processes[1].name == "d3");
  CHECK(plan->workers().size() == 4);
}

TEST_CASE("one host runs its own part on the configured ports") {
  const auto plan = plan_of(
      "pools: { prefill: { replicas: 2 }, decode: { replicas: 2 } }\n"
      "link: { listen: 0.0.0.0:7001 }",
      {.only = "decode", .first = 2});
  REQUIRE(plan.ok());
  CHECK_FALSE(plan->router);
  REQUIRE(plan->processes.size() == 2);
  CHECK(joined(plan->processes[1].args) ==
        "-c t.yaml --role decode --name d3 --listen 0.0.0.0:7002");
}

TEST_CASE("a router with workers elsewhere keeps their addresses") {
  const auto plan = plan_of(
      "pools: { prefill: { workers: tcp://a:1 }, decode: { workers: tcp://b:2, replicas: 1 } }\n"
      "link: { listen: \"0.0.0.0:0\" }");
  REQUIRE(plan.ok());
  const std::string args = joined(plan->processes.back().args);
  CHECK(args.find("prefill.workers=[\"tcp://a:1\"]") != std::string::npos);
  CHECK(args.find("decode.workers=[\"tcp://b:2\",\"tcp://127.0.0.1:1\"]") != std::string::npos);
}

TEST_CASE("router ports of 0 are chosen and passed on") {
  const auto plan = plan_of(
      "pools: { coupled: { replicas: 1 } }\n"
      "router: { listen: \"127.0.0.1:0\", admin: \"127.0.0.1:0\" }");
  REQUIRE(plan.ok());
  CHECK(plan->listen == "127.0.0.1:2");
  CHECK(joined(plan->processes.back().args).find("--set router.admin=127.0.0.1:3") !=
        std::string::npos);
}

TEST_CASE("nothing to start is an error that says what to set") {
  CHECK(plan_of("").status().message() ==
        "t.yaml: no workers: set pools.prefill.replicas and pools.decode.replicas, or "
        "pools.*.workers where they run elsewhere");
  CHECK(plan_of("", {.only = "decode"}).status().message() ==
        "t.yaml: nothing to start: pools.decode.replicas is 0");
}

TEST_CASE("a missing model and a file that is none are told apart") {
  Config config;
  CHECK(check_model(config).message() == "model.path is not set; allowed: a GGUF file");
  config.model.path = "no/model.gguf";
  CHECK(check_model(config).message() ==
        "model.path: no/model.gguf: there is no such file (scripts/setup.sh fetches the default "
        "model)");
  const auto file =
      std::filesystem::temp_directory_path() / ("tandem-plan-" + std::to_string(random_u64()));
  std::ofstream(file) << "GG";
  config.model.path = file.string();
  CHECK(check_model(config).message() ==
        "model.path: " + file.string() + ": this is not a GGUF file");
  std::ofstream(file) << "GGUF....";
  CHECK(check_model(config).ok());
  std::filesystem::remove(file);
  config.model = {.engine = "sim"};
  CHECK(check_model(config).ok());
}

TEST_CASE("picked ports are free and differ, and a port in use is named with its key") {
  PortPicker picker;
  const auto first = picker.pick("127.0.0.1");
  const auto second = picker.pick("127.0.0.1");
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(*first != *second);
  const std::string address = "127.0.0.1:" + std::to_string(*first);
  CHECK_FALSE(accepts_connections({"127.0.0.1", *first}, 1000));
  CHECK(check_address("router.listen", address).message() ==
        "router.listen: " + address +
            ": Address already in use; choose another with "
            "--set router.listen=host:port");
  CHECK(check_address("router.listen", "127.0.0.1:0").ok());
}

TEST_CASE("words are split into options, flags and words") {
  const AllowedArguments allowed{
      .with_value = {"-c", "--set"}, .flags = {"--json"}, .words_max = 1};
  const auto parsed =
      parse_arguments({"-c", "f", "--set", "a=1", "--set=b=2", "d0", "--json"}, allowed);
  REQUIRE(parsed.ok());
  CHECK(parsed->value("-c") == "f");
  CHECK(parsed->values("--set") == std::vector<std::string>{"a=1", "b=2"});
  CHECK(parsed->has("--json"));
  CHECK(parsed->words == std::vector<std::string>{"d0"});
  CHECK(parse_arguments({"-c"}, allowed).status().message() ==
        "-c needs a value; allowed: -c, --set, --json");
  CHECK(parse_arguments({"--jsn"}, allowed).status().message() ==
        "unknown option \"--jsn\"; allowed: -c, --set, --json");
  CHECK(parse_arguments({"a", "b"}, allowed).status().message() ==
        "unexpected \"b\"; allowed: -c, --set, --json");
}

TEST_CASE("workers are shown in a table with a total, and with reasons") {
  const auto workers = parse_workers(R"([
    {"name": "p0", "role": "prefill", "state": "ready", "slots": 4, "slots_free": 3, "running": 1},
    {"name": "d10", "role": "decode", "state": "refused", "slots": 16, "slots_free": 16,
     "kv_tokens_used": 50, "kv_tokens_reserved": 7, "kv_tokens_capacity": 100,
     "transfers_in_flight": 2, "reason": "another model"},
    {"name": "", "address": "127.0.0.1:7", "state": "connecting"}])");
  REQUIRE(workers.ok());
  CHECK(render_workers(*workers, false) ==
        "WORKER       ROLE     STATE       RUNNING  WAITING  SLOTS FREE  KV USED  KV RESERVED  "
        "TRANSFERS\n"
        "p0           prefill  ready             1        0         3/4   0    -            0  "
        "        0\n"
        "d10          decode   refused           0        0       16/16  50  50%            7  "
        "        2\n"
        "127.0.0.1:7           connecting        0        0         0/0   0    -            0  "
        "        0\n"
        "3 workers                               1        0       19/20  50  50%            7  "
        "        2\n"
        "d10: another model\n");
  CHECK(all_ready(*workers, {"p0"}).ok());
  CHECK(all_ready(*workers, {"p0", "d10"}).message() == "worker d10 is refused: another model");
  CHECK(all_ready(*workers, {"p1"}).message() == "worker p1 is not connected");
}

TEST_CASE("an answer that is no list of workers is refused") {
  for (const char* text : {"", "{}", "[1]", "nonsense", "[{\"name\": 1}, []]"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_workers(text).ok());
  }
  CHECK(parse_workers("[]").ok());
  CHECK(*workers_as_json("{\"data\": [{\"x\": 1}]}") == "{\"workers\":[{\"x\":1}]}");
  CHECK(parse_workers("{\"object\": \"list\", \"data\": [{\"name\": \"p0\"}]}")->size() == 1);
  CHECK(parse_workers("[{\"name\": 5, \"slots\": \"x\"}]").ok());  // Wrong types are left empty
}

// Proves that a configuration is read as documented, and that every kind of mistake is named with
// its place, what was found and what is allowed.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/config.h"
#include "common/random.h"

using namespace tandem;

namespace {

Config good(const std::string& text, const std::vector<std::string>& overrides = {}) {
  auto config = parse_config(text, "t.yaml", overrides);
  REQUIRE_MESSAGE(config.ok(), config.status().to_string());
  return *config;
}

std::string error(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const auto config = parse_config(text, "t.yaml", overrides);
  REQUIRE_FALSE(config.ok());
  CHECK(config.status().code() == ErrorCode::kInvalidArgument);
  return config.status().message();
}

// A folder that is gone when the test ends.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() /
              ("tandem-config-" + std::to_string(random_u64()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("an empty file is all defaults") {
  const Config config = good("");
  CHECK(config.router.listen == "127.0.0.1:8080");
  CHECK(config.slo.ttft == Milliseconds(2000));
  CHECK(config.prefill.slots == 4);
  CHECK(config.decode.slots == 16);
  CHECK(config.model.name == "llama");
}

TEST_CASE("every kind of value is read") {
  const Config config = good(R"(
model: { path: models/some-model.gguf, context: 2048 }
pools:
  prefill: { replicas: 2, threads: 3 }
  decode: { replicas: 1, slots: 8, workers: "tcp://10.0.0.1:7001" }
  coupled:
    workers:
      - tcp://a:1
      - tcp://[::1]:2
slo: { ttft_ms: 1500, tpot_ms: 40, on_miss: refuse }
transfer: { transport: tcp, landing_bytes: 32MiB, integrity: false }
sim: { decode_base_ms: 0.5 }
)");
  CHECK(config.model.name == "some-model");
  CHECK(config.model.context == 2048);
  CHECK(config.prefill.replicas == 2);
  CHECK(config.pool(Role::kPrefill).threads == 3);
  CHECK(config.decode.workers == std::vector<std::string>{"tcp://10.0.0.1:7001"});
  CHECK(config.coupled.workers == std::vector<std::string>{"tcp://a:1", "tcp://[::1]:2"});
  CHECK(config.slo.tpot == Milliseconds(40));
  CHECK(config.slo.on_miss == "refuse");
  CHECK(config.transfer.landing_bytes == 32ll << 20);
  CHECK_FALSE(config.transfer.integrity);
  CHECK(config.sim.decode_base_ms == 0.5);
}

TEST_CASE("overrides win over the file and take lists") {
  const Config config = good("router: { listen: 127.0.0.1:1 }",
                             {"router.listen=127.0.0.1:9000", "model.name=other",
                              "pools.decode.workers=[tcp://a:1, tcp://b:2]", "transfer.fault="});
  CHECK(config.router.listen == "127.0.0.1:9000");
  CHECK(config.model.name == "other");
  CHECK(config.decode.workers.size() == 2);
}

TEST_CASE(
    "an unknown key is named with file, line, the key that was meant and all that are allowed") {
  CHECK(error("model: { context: 4096 }\nslo:\n  ttft_mss: 5\n") ==
        "t.yaml:3: unknown key \"slo.ttft_mss\"; did you mean \"slo.ttft_ms\"? "
        "Allowed under slo: ttft_ms, tpot_ms, on_miss");
  CHECK(error("modle: {}") ==
        "t.yaml:1: unknown key \"modle\"; did you mean \"model\"? Allowed at the top: "
        "model, engine, pools, ratio, slo, transfer, link, worker, scheduler, router, "
        "stages, log, sim");
}

TEST_CASE("a key in the wrong section is sent to the right one") {
  CHECK(error("slo: { heartbeat_ms: 5 }") ==
        "t.yaml:1: unknown key \"slo.heartbeat_ms\"; did you mean \"link.heartbeat_ms\"? "
        "Allowed under slo: ttft_ms, tpot_ms, on_miss");
}

TEST_CASE("a key that is like no other gets the list only") {
  CHECK(error("slo: { zebra: 5 }") ==
        "t.yaml:1: unknown key \"slo.zebra\". Allowed under slo: ttft_ms, tpot_ms, on_miss");
}

TEST_CASE("a bad value is named with what was found and what is allowed") {
  CHECK(error("\nmodel:\n  context: -5\n") ==
        "t.yaml:3: model.context: found \"-5\"; allowed: 128 to 1048576");
  CHECK(error("model: { context: many }") ==
        "t.yaml:1: model.context: found \"many\"; allowed: 128 to 1048576");
  CHECK(error("model: { engine: vllm }") ==
        "t.yaml:1: model.engine: found \"vllm\"; allowed: llama | sim");
  CHECK(error("transfer: { integrity: yes }") ==
        "t.yaml:1: transfer.integrity: found \"yes\"; allowed: true | false");
  CHECK(error("transfer: { landing_bytes: 64Mib }") ==
        "t.yaml:1: transfer.landing_bytes: found \"64Mib\"; allowed: 64KiB to 1TiB");
  CHECK(error("slo: { ttft_ms: 0 }") ==
        "t.yaml:1: slo.ttft_ms: found \"0\"; allowed: 1 to 3600000");
  CHECK(error("sim: { decode_base_ms: -1 }") ==
        "t.yaml:1: sim.decode_base_ms: found \"-1\"; allowed: 0 to 1000000");
  CHECK(error("router: { listen: here }") ==
        "t.yaml:1: router.listen: found \"here\"; allowed: host:port");
  CHECK(error("log: { level: loud }") ==
        "t.yaml:1: log.level: found \"loud\"; allowed: error | warn | info | debug");
}

TEST_CASE("a value of the wrong shape is described") {
  CHECK(error("model: { context: [1, 2] }") ==
        "t.yaml:1: model.context: found [1, 2]; allowed: 128 to 1048576");
  CHECK(error("model: { context: { a: 1 } }") ==
        "t.yaml:1: model.context: found a mapping; allowed: 128 to 1048576");
  CHECK(error("model: { context: }") ==
        "t.yaml:1: model.context: found nothing; allowed: 128 to 1048576");
  CHECK(error("slo: 5") ==
        "t.yaml:1: slo: found \"5\"; allowed: a mapping of ttft_ms, tpot_ms, on_miss");
  CHECK(error("- a").starts_with("t.yaml:1: found [a]; allowed: a mapping of model, "));
  CHECK(error("pools: { decode: { workers: [\"dns://x:1\"] } }") ==
        "t.yaml:1: pools.decode.workers: found [dns://x:1]; "
        "allowed: tcp://host:port, or a list of them");
}

TEST_CASE("broken YAML is named with its line") {
  CHECK(error("model: {}\nslo: { ttft_ms: 5\n").starts_with("t.yaml:3: not valid YAML: "));
  CHECK(error("a: b: c").starts_with("t.yaml:1: not valid YAML: "));
}

TEST_CASE("a key that is given twice is refused") {
  CHECK(error("slo: { ttft_ms: 5 }\nslo: { tpot_ms: 5 }") ==
        "t.yaml:2: key \"slo\" is given twice");
  CHECK(error("slo:\n  ttft_ms: 5\n  ttft_ms: 6\n") ==
        "t.yaml:3: key \"slo.ttft_ms\" is given twice");
}

TEST_CASE("a bad override is named as one") {
  CHECK(error("", {"router.threads=0"}) ==
        "--set router.threads=0: router.threads: found \"0\"; allowed: 1 to 256");
  CHECK(error("", {"router.treads=1"})
            .starts_with("--set router.treads=1: unknown key \"router.treads\"; did you mean "
                         "\"router.threads\"?"));
  CHECK(error("", {"nonsense"}) == "--set nonsense: allowed: key=value");
  CHECK(error("", {"model.name=[a"}).starts_with("--set model.name=[a: not valid YAML: "));
}

TEST_CASE("a ratio divides its total") {
  for (const char* text : {"ratio: \"3:5\"\npools: { prefill: { total: 8 } }", "ratio: 3:5",
                           "ratio: { mode: split, prefill: 3, decode: 5, total: 8 }"}) {
    CAPTURE(text);
    const Config config = good(text);
    CHECK(config.ratio.mode == "split");
    CHECK(config.ratio.total == 8);
    CHECK(config.prefill.replicas == 3);
    CHECK(config.decode.replicas == 5);
  }
  const Config odd = good("ratio: \"1:2\"\npools: { decode: { total: 10 } }");
  CHECK(odd.prefill.replicas == 3);
  CHECK(odd.decode.replicas == 7);
  CHECK(good("ratio: fixed").ratio.mode == "fixed");
}

TEST_CASE("auto has bounds per role, starts halved, and is dumped as it is read") {
  const auto config = parse_config(
      "ratio: { mode: auto, total: 9, prefill: { min: 1, max: 3 }, decode: { min: 2 }, coupled: "
      "never }\n",
      "t.yaml");
  REQUIRE(config.ok());
  CHECK(config->prefill.replicas == 3);
  CHECK(config->decode.replicas == 6);
  CHECK(config->ratio.prefill_max == 3);
  CHECK(config->ratio.coupled == "never");
  const auto again = parse_config(dump_config(*config), "dump");
  REQUIRE(again.ok());
  CHECK(again->ratio.decode_min == 2);
  CHECK(parse_config("ratio: auto", "t.yaml")->ratio.mode == "auto");
  CHECK(error("ratio: { mode: auto, prefill: { min: 4, max: 3 } }")
            .find("at most ratio.prefill.max") != std::string::npos);
  CHECK(error("ratio: { mode: auto, total: 4, prefill: { min: 3 }, decode: { min: 2 } }")
            .find("add up to at most ratio.total (4), not 5") != std::string::npos);
}

TEST_CASE("tenant weights are names and numbers above 0") {
  CHECK(parse_weights("gold=4,free=0.5")->at("free") == 0.5);
  CHECK(parse_weights("")->empty());
  for (const char* bad :
       {"gold", "gold=", "=3", "gold=0", "gold=-1", "a=1,a=2", "gold=nan", "a=2000"})
    CHECK(!parse_weights(bad));
}

TEST_CASE("impossible ratios are refused") {
  CHECK(error("ratio: \"0:5\"") ==
        "t.yaml:1: ratio: found \"0:5\"; allowed: fixed | auto | recommend | two numbers from 1 to "
        "1000 as \"3:5\"");
  CHECK(error("ratio: \"3-5\"") ==
        "t.yaml:1: ratio: found \"3-5\"; allowed: fixed | auto | recommend | two numbers from 1 to "
        "1000 as \"3:5\"");
  CHECK(error("ratio: { mode: split, prefill: 3 }") ==
        "t.yaml:1: ratio.mode: found 3:0; allowed: two parts of at least 1: "
        "no role may be left empty");
  CHECK(error("\nratio: \"1:9\"\npools: { prefill: { total: 3 } }") ==
        "t.yaml:2: ratio: found 1:9 of 3 workers, which leaves a role empty; "
        "allowed: a total of at least 5");
  CHECK(error("ratio: \"1:1\"\npools: { prefill: { total: 1 } }") ==
        "t.yaml:2: pools.prefill.total: found \"1\"; allowed: 2 to 2000");
  CHECK(error("ratio: \"1:1\"\npools: { prefill: { replicas: 3 } }") ==
        "t.yaml:2: pools.prefill.replicas: found 3; allowed: 1, or no such key: "
        "ratio 1:1 of 2 workers decides");
}

TEST_CASE("the least total that a refused ratio names is itself allowed") {
  for (int prefill = 1; prefill <= 12; ++prefill) {
    for (int decode = 1; decode <= 12; ++decode) {
      const std::string ratio = std::to_string(prefill) + ":" + std::to_string(decode);
      const auto refused = parse_config("ratio: \"" + ratio + "\"", "t", {"ratio.total=2"});
      if (refused.ok()) continue;
      const std::string message = refused.status().message();
      const std::string least = message.substr(message.rfind(' ') + 1);
      CAPTURE(message);
      CHECK(parse_config("ratio: \"" + ratio + "\"", "t", {"ratio.total=" + least}).ok());
    }
  }
}

TEST_CASE("prefill workers without anybody to generate tokens are refused") {
  CHECK(error("pools: { prefill: { replicas: 1 } }") ==
        "t.yaml: pools.decode.replicas: found 0; allowed: at least 1 (or pools.decode.workers) "
        "where there are prefill workers: somebody must generate the tokens");
}

TEST_CASE("values that contradict each other are refused") {
  CHECK(error("transfer: { landing_bytes: 4MiB }") ==
        "t.yaml:1: transfer.segment_bytes: found 8MiB; "
        "allowed: at most transfer.landing_bytes (4MiB)");
  CHECK(error("link: { heartbeat_ms: 5000 }") ==
        "t.yaml:1: link.silence_max_ms: found 3000; allowed: at least twice link.heartbeat_ms "
        "(5000)");
  CHECK(error("link: { silence_max_ms: 1500 }") ==
        "t.yaml:1: link.silence_max_ms: found 1500; allowed: at least twice link.heartbeat_ms "
        "(1000)");
  CHECK(error("\nrouter: { admin: \"127.0.0.1:8080\" }") ==
        "t.yaml:2: router.admin: found 127.0.0.1:8080; allowed: another address than "
        "router.listen");
}

TEST_CASE("a dumped configuration reads back to the same") {
  const Config config = good(
      "ratio: \"3:5\"\nmodel: { engine: sim, path: 'a b/c: d.gguf' }\n"
      "pools: { coupled: { workers: [tcp://a:1] } }\nsim: { prefill_per_token2_us: 0.00168 }");
  const std::string dumped = dump_config(config);
  const Config again = good(dumped);
  CHECK(dump_config(again) == dumped);
  CHECK(again.model.path == "a b/c: d.gguf");
  CHECK(again.prefill.replicas == 3);
  CHECK(again.coupled.workers == config.coupled.workers);
}

TEST_CASE("the key table has every default that the reader uses") {
  const std::string table = config_markdown();
  CHECK(table.find("| `router.listen` | `127.0.0.1:8080` | host:port |") != std::string::npos);
  CHECK(table.find("| `slo.on_miss` | `serve` | serve \\| refuse |") != std::string::npos);
}

TEST_CASE("a missing file and an empty one are told apart") {
  const Folder folder;
  const auto missing = load_config("no/such/file.yaml");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.status().to_string() == "not_found: no/such/file.yaml: there is no such file");
  CHECK(load_config(folder.write("empty.yaml", "")).ok());
}

TEST_CASE("a model is found from the folders above the file") {
  const Folder folder;
  const auto model = folder.write("models/m-of-this-test.gguf", "x");
  const auto file = folder.write("configs/c.yaml", "model: { path: models/m-of-this-test.gguf }");
  const auto config = load_config(file);
  REQUIRE(config.ok());
  CHECK(config->model.path == model.string());
  CHECK(config->model.name == "m-of-this-test");
  const auto absent = load_config(folder.write("configs/d.yaml", "model: { path: models/n.gguf }"));
  REQUIRE(absent.ok());
  CHECK(absent->model.path == "models/n.gguf");
}

TEST_CASE("addresses are host and port") {
  const auto host_port = [](const char* text) {
    const auto parsed = parse_host_port(text);
    return parsed ? parsed->host + " " + std::to_string(parsed->port) : std::string("bad");
  };
  CHECK(host_port("127.0.0.1:80") == "127.0.0.1 80");
  CHECK(host_port("tcp://worker-1:7001") == "worker-1 7001");
  CHECK(host_port("[::1]:0") == "::1 0");
  for (const char* text : {"", ":80", "host", "host:", "host:65536", "host:-1", "host:8x", "::1:80",
                           "a b:1", "http://host:80", "[]:1"}) {
    CAPTURE(text);
    CHECK(host_port(text) == "bad");
  }
}

// What tandem-sim accepts, and how it says no.
#include "simulator/settings.h"

#include <doctest/doctest.h>

#include "simulator/profile_file.h"

using namespace tandem;
using namespace tandem::simulator;

namespace {

std::string refusal(const std::vector<std::string>& arguments) {
  const auto settings = parse_settings(arguments);
  if (!settings.ok()) return settings.status().message();
  const auto cluster = make_cluster(*settings);
  return cluster.ok() ? "" : cluster.status().message();
}

void check_refused(const std::vector<std::string>& arguments, const std::string& part) {
  const std::string message = refusal(arguments);
  CHECK_MESSAGE(message.find(part) != std::string::npos, message);
}

}  // namespace

TEST_CASE("splits are read as they are written") {
  const auto fixed = parse_split("3:5");
  REQUIRE(fixed.ok());
  CHECK(fixed->kind == Split::Kind::kFixed);
  CHECK(fixed->prefill == 3);
  CHECK(fixed->decode == 5);
  CHECK(parse_split("auto")->kind == Split::Kind::kAuto);
  CHECK(parse_split("auto:1:7")->decode == 7);
  CHECK(parse_split("coupled:512")->chunk_tokens == 512);
  for (const char* wrong : {"", "4", "0:8", "8:0", "3:5:1", "coupled:64", "coupled:x", "auto:0:8",
                            "-1:4", "3:five", "ratio"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_split(wrong).ok());
  }
}

TEST_CASE("a split makes the workers, an equal one where auto says nothing") {
  const auto settings = parse_settings({"--request-rate=1", "--split=auto", "--workers=5"});
  REQUIRE(settings.ok());
  const auto cluster = make_cluster(*settings);
  REQUIRE(cluster.ok());
  REQUIRE(cluster->workers.size() == 5);
  CHECK(cluster->workers[1].role == Role::kPrefill);
  CHECK(cluster->workers[2].role == Role::kDecode);
  CHECK(cluster->workers[4].name == "d2");
}

TEST_CASE("wrong arguments are named with what is allowed") {
  check_refused({"--sprit", "4:4"}, "unknown argument --sprit");
  check_refused({"--url", "http://x"}, "unknown argument --url");
  check_refused({"--workers"}, "--workers needs a value");
  check_refused({"--workers", "0"}, "allowed: 1 to 4096");
  check_refused({"--workers", "2.5"}, "not a whole number");
  check_refused({"--ttft-ms", "soon"}, "'soon' is not a number");
  check_refused({"--split", "8:0"}, "both at least 1");
  check_refused({"--goodput"}, "--trace");
  check_refused({"--request-rate", "1", "--workers", "1"}, "auto needs two or more");
  check_refused({"--trace", "t.csv", "--rate", "5", "--rate-scale", "2"}, "exclude each other");
  check_refused({"--profile", "gpt-5"}, "there is no profile");
  check_refused({"--set", "scheduler.police=none"}, "scheduler.police");
}

TEST_CASE("a profile in YAML is checked key by key and number by number") {
  const auto good = parse_profile("prefill_per_token_us: 30\ndecode_base_ms: 9\ngpus: 2\n", "p");
  REQUIRE_MESSAGE(good.ok(), good.status().message());
  CHECK(good->costs.prefill_per_token_us == 30);
  CHECK(good->costs.decode.base_ms == 9);
  CHECK(good->costs.gpus == 2);
  for (const auto& [text, part] : {std::pair{"prefill_per_token_us: 0", "prefill_per_token_us"},
                                   {"decode_base_ms: -1", "decode_base_ms"},
                                   {"decode_base_ms: .nan", "decode_base_ms"},
                                   {"speed: 5", "p:1: unknown key speed"},
                                   {"gpus: many", "gpus is not a number"},
                                   {"- 1", "a map of numbers"},
                                   {"a: [", "p: "}}) {
    CAPTURE(text);
    const auto bad = parse_profile(text, "p");
    REQUIRE_FALSE(bad.ok());
    CHECK_MESSAGE(bad.status().message().find(part) != std::string::npos, bad.status().message());
  }
  CHECK_FALSE(load_profile("missing.yaml").ok());
}

// The command line: what it means, and what it says about mistakes.
#include "bench/options.h"

#include <doctest/doctest.h>

namespace tandem::bench {
namespace {

std::string mistake(const std::vector<std::string>& arguments) {
  const auto options = parse_options(arguments);
  REQUIRE_FALSE(options.ok());
  return options.status().message();
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("options are read in both forms and under other tools' names") {
  const auto options =
      parse_options({"--concurrency=4", "--input-len", "10-20", "--random-output-len", "7",
                     "--goodput", "ttft:200", "tpot:50", "--metric-percentiles", "50,99.9",
                     "--compare", "a.yaml", "url=http://x", "--endpoint", "chat"});
  REQUIRE(options.ok());
  CHECK(options->concurrency == 4);
  CHECK(options->input_range().low == 10);
  CHECK(options->input_range().high == 20);
  CHECK(options->output_range().high == 7);
  CHECK(options->goodput.ttft_ms == 200.0);
  CHECK(options->goodput.tpot_ms == 50.0);
  CHECK(options->percentiles == std::vector<double>{50.0, 99.9});
  CHECK(options->compare.size() == 2);
  CHECK(options->endpoint == Endpoint::kChat);
  CHECK_FALSE(options->open_loop());
}

TEST_CASE("modes change the default lengths") {
  CHECK(parse_options({"--mode", "prefill"})->output_range().high == 1);
  CHECK(parse_options({"--mode", "prefill", "--output-len", "9"})->output_range().high == 1);
  CHECK(parse_options({"--mode", "decode"})->input_range().high == 4);
  CHECK(parse_options({"--request-rate", "3"})->open_loop());
  CHECK(parse_options({"--trace", "x.csv"})->open_loop());
}

TEST_CASE("mistakes are named with what is allowed") {
  CHECK(mentions(mistake({"--nonsense"}), "unknown option --nonsense"));
  CHECK(mentions(mistake({"--concurrency"}), "needs a value"));
  CHECK(mentions(mistake({"--concurrency", "many"}), "'many' is not a number"));
  CHECK(mentions(mistake({"--concurrency", "-1"}), "allowed: 1 to"));
  CHECK(mentions(mistake({"--input-len", "20-10"}), "below its start"));
  CHECK(mentions(mistake({"--input-len", "0"}), "out of range"));
  CHECK(mentions(mistake({"--arrival", "uniform"}), "allowed: poisson, gamma, constant"));
  CHECK(mentions(mistake({"--goodput", "ttft=200"}), "ttft:200"));
  CHECK(mentions(mistake({"--goodput", "itl:200"}), "allowed: ttft, tpot, e2el"));
  CHECK(mentions(mistake({"--metric-percentiles", "101"}), "out of range"));
  CHECK(mentions(mistake({"--extra-body", "[1]"}), "not a JSON object"));
  CHECK(mentions(mistake({"--request-rate", "nan"}), "out of range"));
  CHECK(mentions(mistake({"--save-detailed=1"}), "takes no value"));
}

TEST_CASE("combinations that mean nothing are refused") {
  CHECK_FALSE(parse_options({"--trace", "a.csv", "--request-rate", "1"}).ok());
  CHECK_FALSE(parse_options({"--trace", "a.csv", "--input-len", "1"}).ok());
  CHECK_FALSE(parse_options({"--ramp", "1-5", "--request-rate", "1"}).ok());
  CHECK_FALSE(parse_options({"--ramp", "1-5", "--duration", "5"}).ok());
  CHECK_FALSE(parse_options({"--burstiness", "2"}).ok());
  CHECK_FALSE(parse_options({"--scenario", "mixed", "--request-rate", "1"}).ok());
}

TEST_CASE("the help names every option once and its examples parse") {
  const std::string help = help_text();
  for (const char* name : {"--url", "--trace", "--compare", "--scenario", "--max-seconds"})
    CHECK(mentions(help, name));
  CHECK(parse_options({"--help"})->help);
  CHECK(parse_options({"--scenario", "mixed", "--duration", "60", "--compare", "a.yaml", "b.yaml",
                       "--html", "x.html"})
            .ok());
}

}  // namespace
}  // namespace tandem::bench

// Cutting a trace: scale, window, and where a seed begins.
#include "simulator/load.h"

#include <doctest/doctest.h>

using namespace tandem;
using namespace tandem::simulator;

namespace {

std::vector<bench::TraceRow> rows() {
  std::vector<bench::TraceRow> out;
  for (int i = 0; i < 10; ++i) out.push_back({i * 1.0, 1000 + i, 10, {}});
  out[0].hash_ids = {7, 8};  // The second block is not full
  return out;
}

}  // namespace

TEST_CASE("a scale makes the same requests come faster") {
  const auto requests = cut_trace(rows(), {.scale = 4});
  CHECK(requests.size() == 10);
  CHECK(requests[8].at_s == doctest::Approx(2.0));
  CHECK(requests[0].blocks == std::vector<uint64_t>{7});
}

TEST_CASE("a window keeps the requests of its first seconds, before scaling") {
  CHECK(cut_trace(rows(), {.scale = 2, .window_s = 4}).size() == 4);
}

TEST_CASE("a seed begins elsewhere and goes round, with all requests once") {
  const auto requests = cut_trace(rows(), {.seed = 3});
  REQUIRE(requests.size() == 10);
  int sum = 0;
  for (size_t i = 0; i < 10; ++i) {
    sum += requests[i].prompt_tokens - 1000;
    if (i > 0) CHECK(requests[i].at_s == doctest::Approx(static_cast<double>(i)));
  }
  CHECK(sum == 45);
  CHECK(trace_span_s(rows()) == doctest::Approx(10.0));
}

TEST_CASE("a synthetic load is that of the load test, and must be open") {
  bench::Options options;
  options.request_rate = 10;
  options.num_prompts = 50;
  options.seed = 7;
  const auto requests = synthetic_load(options);
  REQUIRE(requests.ok());
  CHECK(requests->size() == 50);
  CHECK(requests->back().at_s == doctest::Approx(5.0));
  options.request_rate = 0;
  CHECK_FALSE(synthetic_load(options).ok());
}

// Traces of every known form, and mistakes in them by line number.
#include "bench/trace.h"

#include <doctest/doctest.h>

#include <sstream>

#include "bench/workload.h"

namespace tandem::bench {
namespace {

Result<std::vector<TraceRow>> read(const std::string& text, TraceFormat format, size_t limit = 0) {
  std::istringstream in(text);
  return read_trace(in, format, "t", limit);
}

std::string mistake(const std::string& text, TraceFormat format) {
  const auto rows = read(text, format);
  REQUIRE_FALSE(rows.ok());
  return rows.status().message();
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("Mooncake's lines are read, times in milliseconds") {
  const auto rows =
      read(R"({"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]})"
           "\n\n"
           R"({"timestamp": 3500, "input_length": 10, "output_length": 1})"
           "\n",
           TraceFormat::kJsonl);
  REQUIRE(rows.ok());
  REQUIRE(rows->size() == 2);
  CHECK((*rows)[0].at_s == 0.0);
  CHECK((*rows)[0].hash_ids == std::vector<uint64_t>{0, 7});
  CHECK((*rows)[1].at_s == doctest::Approx(2.5));
  CHECK((*rows)[1].input_tokens == 10);
}

TEST_CASE("splitwise, Azure and BurstGPT tables are read") {
  const auto splitwise =
      read("arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,374,44\r\n4.75,396,109\n",
           TraceFormat::kCsv);
  REQUIRE(splitwise.ok());
  CHECK((*splitwise)[1].at_s == doctest::Approx(4.25));
  CHECK((*splitwise)[1].output_tokens == 109);
  const auto azure = read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 23:59:59.5000000,4808,10\n"
      "2023-11-17 00:00:01.2500000+00:00,3180,8\n",
      TraceFormat::kCsv);
  REQUIRE(azure.ok());
  CHECK((*azure)[1].at_s == doctest::Approx(1.75));
  const auto burst = read(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log "
      "Type\n5,ChatGPT,472,18,490,Log\n",
      TraceFormat::kCsv, 1);
  REQUIRE(burst.ok());
  CHECK((*burst)[0].input_tokens == 472);
}

TEST_CASE("a limit reads no further, not even a broken line") {
  const auto rows = read("arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\nbroken\n",
                         TraceFormat::kCsv, 1);
  REQUIRE(rows.ok());
  CHECK(rows->size() == 1);
}

TEST_CASE("mistakes name the line and the reason") {
  const std::string header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
  const auto csv = [&](const std::string& body) {
    return mistake(header + body, TraceFormat::kCsv);
  };
  CHECK(mentions(csv("1,5,5\n0.5,5,5\n"), "t:3: time 0.5 is before 1 of line 2"));
  CHECK(mentions(csv("-1,5,5\n"), "t:2: negative time"));
  CHECK(mentions(csv("1,5\n"), "t:2: 2 columns, needs 3"));
  CHECK(mentions(csv("1,x,5\n"), "t:2: 'x' is not a number"));
  CHECK(mentions(csv("soon,5,5\n"), "t:2: 'soon' is neither seconds nor a date"));
  CHECK(mentions(csv("1,0,5\n"), "t:2: input length 0"));
  CHECK(mentions(csv("1,5,1.5\n"), "t:2: output length 1.5"));
  CHECK(mentions(csv("nan,5,1\n"), "t:2"));
  CHECK(mentions(csv(""), "no rows"));
  CHECK(mentions(mistake("a,b\n1,2\n", TraceFormat::kCsv), "t:1: missing column"));
  CHECK(mentions(mistake("{\"timestamp\":1,\"input_length\":1}\n", TraceFormat::kJsonl),
                 "t:1: no field output_length"));
  CHECK(mentions(mistake("{\"timestamp\":\"1\",\"input_length\":1,\"output_length\":1}\n",
                         TraceFormat::kJsonl),
                 "timestamp is not a number"));
  CHECK(mentions(
      mistake("{\"timestamp\":1,\"input_length\":1,\"output_length\":1,\"hash_ids\":[\"a\"]}\n",
              TraceFormat::kJsonl),
      "hash_ids"));
  CHECK(mentions(mistake("not json\n", TraceFormat::kJsonl), "t:1: not a JSON object"));
  CHECK(mentions(load_trace("/nowhere/x.jsonl").status().message(), "cannot be read"));
  CHECK(mentions(load_trace("x.txt").status().message(), ".jsonl or .csv"));
}

TEST_CASE("a workload draws lengths within their ranges and ends after its prompts") {
  Options options;
  options.num_prompts = 200;
  options.input_len = LengthRange{10, 20};
  options.output_len = LengthRange{1, 3};
  options.shared_prefix_len = 100;
  auto workload = Workload::make(options);
  REQUIRE(workload.ok());
  int low = 1000, high = 0;
  for (int i = 0; i < 200; ++i) {
    const auto request = workload->next();
    REQUIRE(request.has_value());
    low = std::min(low, request->prompt.tokens);
    high = std::max(high, request->prompt.tokens);
    CHECK(request->output_tokens >= 1);
    CHECK(request->output_tokens <= 3);
  }
  CHECK(low == 110);
  CHECK(high == 120);
  CHECK_FALSE(workload->next().has_value());
}

TEST_CASE("an open loop of a given duration sends rate times duration requests") {
  Options options;
  options.request_rate = 4.0;
  options.duration_s = 2.5;
  auto workload = Workload::make(options);
  REQUIRE(workload.ok());
  CHECK(workload->total() == 10);
}

}  // namespace
}  // namespace tandem::bench

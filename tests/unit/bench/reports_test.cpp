// Reports: the JSON's keys, the table, and an HTML file that needs nothing else.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "bench/html_report.h"
#include "bench/json_report.h"
#include "bench/summary.h"
#include "bench/svg_plot.h"

namespace tandem::bench {
namespace {

RunResult small_run(const std::string& label, Options options = {}) {
  RunRecords records;
  for (int i = 0; i < 20; ++i) {
    RequestRecord record;
    record.start_s = 0.1 * i;
    for (int token = 1; token <= 10; ++token)
      record.token_times_s.push_back(record.start_s + 0.02 * token);
    record.input_tokens = 5;
    record.output_tokens = record.output_planned = 10;
    record.ok = true;
    record.text = "t\xff";  // Not UTF-8: a server may send anything.
    records.requests.push_back(record);
  }
  records.requests.emplace_back().error = "<b>bad</b> & \"worse\"";
  records.duration_s = records.gaps_until_s = 2.5;
  RunResult result = evaluate(options, std::move(records));
  result.label = label;
  result.model = "m";
  result.url = "http://127.0.0.1:1";
  return result;
}

TEST_CASE("the JSON has the keys of vllm bench serve") {
  Options options;
  options.save_detailed = true;
  options.percentiles = {90.0, 99.9};
  const auto json = nlohmann::json::parse(json_report(options, {small_run("")}));
  for (const char* key : {"duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "input_lens",
                          "output_lens",
                          "ttfts",
                          "itls",
                          "latencies",
                          "start_times",
                          "queue_times",
                          "generated_texts",
                          "errors",
                          "max_output_tokens_per_s",
                          "max_concurrent_requests",
                          "date",
                          "backend",
                          "model_id",
                          "num_prompts",
                          "request_rate",
                          "burstiness",
                          "max_concurrency"}) {
    CAPTURE(key);
    CHECK(json.contains(key));
  }
  for (const char* metric : {"ttft", "tpot", "itl", "e2el"})
    for (const char* statistic : {"mean", "median", "std", "p90", "p99.9"})
      CHECK(json[std::string(statistic) + "_" + metric + "_ms"].is_number());
  CHECK(json["completed"] == 20);
  CHECK(json["failed"] == 1);
  CHECK(json["ttfts"].size() == 21);
  CHECK(json["itls"][0].size() + json["itls"][1].size() == 9);  // The failed one was sent first.
  CHECK(json["request_goodput"].is_null());
}

TEST_CASE("several runs become a list") {
  const auto json = nlohmann::json::parse(json_report(Options(), {small_run("a"), small_run("b")}));
  REQUIRE(json["runs"].size() == 2);
  CHECK(json["runs"][1]["label"] == "b");
  CHECK_FALSE(json["runs"][0].contains("ttfts"));
}

TEST_CASE("the table names failures and compares to the first run") {
  const std::string one = summary_table(Options(), {small_run("")});
  CHECK(one.find("time to first token") != std::string::npos);
  CHECK(one.find("1 failed: <b>bad</b>") != std::string::npos);
  const std::string two = summary_table(Options(), {small_run("a"), small_run("b")});
  CHECK(two.find("1.00x") != std::string::npos);
}

TEST_CASE("the HTML report stands alone and escapes what others wrote") {
  Options mixed;
  mixed.scenario = Scenario::kMixed;
  for (const std::vector<RunResult>& runs :
       {std::vector{small_run("a<x>")}, std::vector{small_run("a<x>"), small_run("b")},
        std::vector{small_run("a<x>", mixed), small_run("b", mixed), small_run("c", mixed)}}) {
    const std::string html = html_report(Options(), runs);
    CHECK(html.starts_with("<!doctype html>"));
    CHECK(html.find("<svg") != std::string::npos);
    for (const char* outside :
         {"<script", "<link", "@import", "src=", "url(", "<b>bad", "a<x>", "nan", "inf\""}) {
      CAPTURE(outside);
      CHECK(html.find(outside) == std::string::npos);
    }
  }
}

TEST_CASE("a report without any success can be made") {
  RunRecords records;
  records.requests.emplace_back().error = "x";
  const RunResult result = evaluate(Options(), std::move(records));
  CHECK(html_report(Options(), {result}).find("</html>") != std::string::npos);
  CHECK(json_report(Options(), {result}).find("nan") == std::string::npos);
}

TEST_CASE("numbers are grouped by thousands") {
  CHECK(format_number(0.0, 0) == "0");
  CHECK(format_number(999.0, 0) == "999");
  CHECK(format_number(1234567.85, 1) == "1,234,567.9");
  CHECK(format_number(-1234.0, 0) == "-1,234");
  CHECK(format_number(-123.0, 0) == "-123");
}

TEST_CASE("axes hold their values") {
  CHECK(axis_from_zero(0.0, "").high == 1.0);
  CHECK(axis_from_zero(97.0, "").high == 100.0);
  CHECK(axis_from_zero(101.0, "").high >= 101.0);
  const PlotAxis narrow = log_axis(10.0, 11.0, "");
  CHECK(narrow.high / narrow.low == doctest::Approx(10.0));
  CHECK(log_axis(0.0, 0.0, "").high > log_axis(0.0, 0.0, "").low);
}

}  // namespace
}  // namespace tandem::bench

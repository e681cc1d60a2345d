// What the user asked tandem-bench to do. Plain values; the initialisers are the defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/arrivals.h"
#include "bench/completion_event.h"
#include "common/status.h"

namespace tandem::bench {

enum class Mode { kBoth, kPrefill, kDecode };
enum class Scenario { kUniform, kMixed };

struct LengthRange {
  int low = 0;
  int high = 0;
};

// A request is good when every limit that is given holds. Milliseconds.
struct GoodputLimits {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

// Steady streams, each restarted when it ends, and one long prompt every so often.
struct MixedOptions {
  int streams = 6;
  int long_tokens = 700;
  double long_every_s = 4.0;  // 0: no long prompts (the undisturbed run)
  int long_output = 32;
};

struct Options {
  // Server
  std::string url = "http://127.0.0.1:8080";
  std::string model;  // Empty: the first of /v1/models
  std::string api_key;
  std::vector<std::string> headers;  // "Name: value"
  Endpoint endpoint = Endpoint::kCompletions;
  std::string extra_body = "{}";  // A JSON object

  // Load
  std::optional<int64_t> num_prompts;  // Default: 100, or no limit when a duration is given
  double duration_s = 0.0;
  int warmup = 0;
  int concurrency = 0;        // Closed loop: default 8. Open loop: a cap, 0 is none
  double request_rate = 0.0;  // Above 0: open loop
  ArrivalPlan::Kind arrival = ArrivalPlan::Kind::kPoisson;
  double burstiness = 1.0;
  double ramp_from = 0.0;
  double ramp_to = 0.0;
  uint64_t seed = 0;

  // Lengths in tokens
  std::optional<LengthRange> input_len;   // Default: 256; 4 in mode decode
  std::optional<LengthRange> output_len;  // Default: 64; 256 in mode decode
  int shared_prefix_len = 0;
  Mode mode = Mode::kBoth;

  // Traces
  std::string trace;
  double speed = 1.0;
  int64_t trace_limit = 0;
  int max_input = 0;  // Longer prompts of a trace are cut to this; 0: never
  int max_output = 0;

  Scenario scenario = Scenario::kUniform;
  MixedOptions mixed;

  // Measuring and reporting
  GoodputLimits goodput;
  std::vector<double> percentiles{90.0, 99.0};
  std::string json_file;  // "-": standard output
  std::string html_file;
  std::string label;
  bool save_detailed = false;
  bool progress = true;

  // Comparing
  std::vector<std::string> compare;
  std::vector<std::string> wait_urls;
  double startup_s = 120.0;

  // Bounds: nothing waits longer
  double max_seconds = 3600.0;
  double request_timeout_s = 600.0;

  bool help = false;

  bool open_loop() const { return request_rate > 0.0 || ramp_to > 0.0 || !trace.empty(); }
  LengthRange input_range() const;
  LengthRange output_range() const;
};

// `arguments` without the program's name. A failure says which argument is wrong and what is
// allowed.
Result<Options> parse_options(const std::vector<std::string>& arguments);
std::string help_text();

}  // namespace tandem::bench

// The figures of one run, by the definitions of `vllm bench serve`:
//   TTFT  send to first content chunk           E2EL  send to last content chunk
//   TPOT  (E2EL - TTFT) / (output tokens - 1), one value per request with more than one token
//   ITL   every gap between content chunks, of all requests together
// Failed requests are in none of them. Values are immutable.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/options.h"
#include "bench/record.h"
#include "bench/statistics.h"

namespace tandem::bench {

// The mixed scenario: what long prompts do to the gaps of steady streams.
struct Interference {
  Samples gaps_ms;  // Of the steady streams, within the measured time
  Samples steady_ttft_ms;
  Samples long_ttft_ms;
  size_t long_prompts = 0;

  // The percentile, as a multiple of the median.
  double ratio(double percent) const;
};

// Values at step_s, 2 step_s, ... after the start.
struct Timeline {
  double step_s = 0.0;
  std::vector<double> waiting;       // Sent, no token yet; mean over the step
  std::vector<double> running;       // Between first and last token; mean over the step
  std::vector<double> tokens_per_s;  // Content chunks read during the step
};

struct RunResult {
  std::string label, model, url, date, load;  // `load`: one line for people
  double duration_s = 0.0;
  size_t completed = 0;
  size_t failed = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  double requests_per_s = 0.0;
  std::optional<double> good_requests_per_s;
  size_t good = 0;
  double output_tokens_per_s = 0.0;
  double total_tokens_per_s = 0.0;
  double max_output_tokens_per_s = 0.0;  // Within one second
  int max_concurrent = 0;                // Seen within one second, as vLLM counts it
  int peak_running = 0;                  // Between first and last token at the same time
  int peak_in_flight = 0;                // Really at the same time
  Samples ttft_ms, tpot_ms, itl_ms, e2el_ms, client_queue_ms;
  bool counted_by_server = true;  // Every request's tokens came from the server's usage
  size_t short_outputs = 0;       // Completed with fewer tokens than asked for
  std::vector<std::pair<std::string, size_t>>
      failures;  // Reason and how often, most frequent first
  std::string stopped_because;
  std::optional<Interference> interference;
  Timeline timeline;
  std::vector<RequestRecord> requests;  // In the order in which they were sent
};

// What a user calls this load, e.g. "closed loop, 8 at once, input 256, output 64".
std::string describe_load(const Options& options);

RunResult evaluate(const Options& options, RunRecords records);

}  // namespace tandem::bench

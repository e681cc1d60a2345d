// What the client saw of one request. Times are seconds since the start of the run.
#pragma once

#include <string>
#include <vector>

#include "bench/workload.h"

namespace tandem::bench {

struct RequestRecord {
  size_t index = 0;
  Group group = Group::kMain;
  double due_s =
      0.0;  // When it should have been sent; start_s - due_s is time in the client's own queue
  double start_s = 0.0;  // Just before connecting
  // When each content chunk was read. The first is TTFT's end, the last is E2EL's.
  std::vector<double> token_times_s;
  int input_tokens = 0;   // As the server counted them, else as planned
  int output_tokens = 0;  // As the server counted them, else one per content chunk
  int output_planned = 0;
  bool counted_by_server = false;
  bool ok = false;
  std::string error;  // Why not
  std::string text;   // Only when asked for

  double ttft_s() const { return token_times_s.front() - start_s; }
  double e2el_s() const { return token_times_s.back() - start_s; }
  double queue_s() const { return start_s > due_s ? start_s - due_s : 0.0; }
  // (E2EL - TTFT) / (output tokens - 1); 0 for a single token.
  double tpot_s() const {
    return output_tokens > 1 ? (e2el_s() - ttft_s()) / static_cast<double>(output_tokens - 1) : 0.0;
  }
};

struct RunRecords {
  std::vector<RequestRecord> requests;
  double duration_s = 0.0;      // From the first send to the last answer
  double gaps_until_s = 0.0;    // Mixed scenario: later gaps are not measured, since the load fades
  std::string stopped_because;  // Empty when the run ended as planned
};

}  // namespace tandem::bench

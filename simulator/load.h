// The requests of a simulated run: a trace's rows scaled in time, or the synthetic load of
// tandem-bench. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/trace.h"
#include "bench/workload.h"
#include "common/status.h"

namespace tandem::simulator {

inline constexpr int kTraceBlockTokens = 512;  // Prompt tokens per hash of a trace

struct SimRequest {
  double at_s = 0;
  int prompt_tokens = 1;
  int output_tokens = 1;
  std::vector<uint64_t> blocks;  // Of the prompt's full blocks, kTraceBlockTokens each
};

struct TraceCut {
  double scale = 1;     // How many times faster the rows come
  double window_s = 0;  // Of the trace, before scaling; 0: all of it
  uint64_t seed = 0;    // Where it begins: 0 at the first row, else at a row drawn from the seed;
                        // behind the last row follows the first
};

// Requires: `rows` is not empty, scale > 0.
std::vector<SimRequest> cut_trace(const std::vector<bench::TraceRow>& rows, const TraceCut& cut);
// How many seconds the rows take, one mean gap after the last included.
double trace_span_s(const std::vector<bench::TraceRow>& rows);

Result<std::vector<SimRequest>> synthetic_load(const bench::Options& options);

}  // namespace tandem::simulator

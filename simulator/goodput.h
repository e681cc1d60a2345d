// Goodput: the highest rate at which enough requests of a trace meet both limits. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/trace.h"
#include "simulator/cluster.h"

namespace tandem::simulator {

struct GoodputQuestion {
  double attainment = 0.9;  // Of all requests, within both limits
  double window_s = 0;      // Of the trace
  uint64_t seed = 0;
  double start_scale = 1;   // Where the search begins
  double precision = 1.01;  // Ratio between a rate that fails and one that holds
};

struct Goodput {
  double scale = 0;  // Of the trace's times; 0: no rate holds
  double requests_per_s = 0;
  double requests_per_s_per_worker = 0;
  double attainment = 0;
  int runs = 0;
};

// Requires: `rows` is not empty.
Goodput find_goodput(const ClusterOptions& options, const std::vector<bench::TraceRow>& rows,
                     const GoodputQuestion& question);

}  // namespace tandem::simulator

// The plots of the HTML report, each from the results of all runs. Pure functions.
#pragma once

#include <vector>

#include "bench/run_result.h"
#include "bench/svg_plot.h"

namespace tandem::bench {

// How many requests waited how long for their first token.
Plot ttft_plot(const std::vector<RunResult>& runs);
// Which share of the gaps between tokens was longer than x. Both axes logarithmic: tails are the
// point.
Plot gap_plot(const std::vector<RunResult>& runs);
// The longest gap at each moment; steady streams only in the mixed scenario.
Plot stall_plot(const std::vector<RunResult>& runs);
Plot throughput_plot(const std::vector<RunResult>& runs);
// Running and waiting requests of one run, on axes that fit all.
Plot load_plot(const std::vector<RunResult>& runs, size_t run);

}  // namespace tandem::bench

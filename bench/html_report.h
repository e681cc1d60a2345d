// One HTML file with everything inside: tables and SVG plots, no scripts, nothing loaded from
// elsewhere.
#pragma once

#include <string>
#include <vector>

#include "bench/options.h"
#include "bench/run_result.h"

namespace tandem::bench {

// Requires: `runs` is not empty.
std::string html_report(const Options& options, const std::vector<RunResult>& runs);

}  // namespace tandem::bench

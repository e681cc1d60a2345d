// Results as JSON with the keys of `vllm bench serve`, plus what a comparison and the mixed
// scenario add.
#pragma once

#include <string>
#include <vector>

#include "bench/options.h"
#include "bench/run_result.h"
#include "common/status.h"

namespace tandem::bench {

// One run: its object. Several: {"runs": [...]}.
std::string json_report(const Options& options, const std::vector<RunResult>& runs);

// "-" is standard output.
Status write_text(const std::string& file, const std::string& text);

}  // namespace tandem::bench

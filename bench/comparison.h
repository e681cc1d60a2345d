// Runs the load on each target: a server that is there, one that `tandem up` starts, or one that a
// command starts. Targets are started and stopped one after the other.
#pragma once

#include <string>
#include <vector>

#include "bench/options.h"
#include "bench/run_result.h"
#include "common/status.h"

namespace tandem::bench {

struct Target {
  enum class Kind { kUrl, kConfig, kCommand };
  Kind kind = Kind::kUrl;
  std::string label;
  std::string what;  // Address, file, or command line
  std::string url;   // Where it answers
};

// The targets of --compare, or the one of --url. Reads the configurations, to know where they
// listen.
Result<std::vector<Target>> parse_targets(const Options& options);

// Warm-up and run. Fails when the target cannot be started or does not answer.
Result<RunResult> run_target(const Options& options, const Target& target, bool show_label);

}  // namespace tandem::bench

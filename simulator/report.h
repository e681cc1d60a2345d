// A simulated run as tables, JSON and HTML: the load test's figures by the load test's definitions,
// and what only the simulator knows. Pure functions.
#pragma once

#include <string>

#include "bench/run_result.h"
#include "simulator/cluster.h"
#include "simulator/settings.h"

namespace tandem::simulator {

struct Report {
  std::string table;
  std::string json;
  std::string html;
};

// Requires: the cluster ran with token_times.
Report make_report(const Settings& settings, const ClusterOptions& options, ClusterResult result);

}  // namespace tandem::simulator

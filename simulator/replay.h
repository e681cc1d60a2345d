// Judges logged decisions: what each alternative would have cost by one and the same estimate, the
// regret of what was chosen, and what the scheduler would choose now. Pure functions over a log of
// scheduler/decision_log.h.
#pragma once

#include <string>
#include <vector>

#include "bench/statistics.h"
#include "scheduler/decision_log.h"
#include "simulator/settings.h"

namespace tandem::simulator {

struct JudgedDecision {
  double chosen_ms = 0;  // Estimated time to first token of what was chosen; below 0: refused
  double best_ms = 0;    // Of the best alternative
  std::string best;      // "remote p1" or "local d0"
  double regret_ms = 0;  // What was lost against the best; 0 for refused ones
  std::string now;       // What the scheduler chooses for the same input; "wait" where it waits
  double now_regret_ms = 0;
  bool same = false;  // It chooses the same
};

struct Judgement {
  std::vector<JudgedDecision> decisions;  // In the log's order
  bench::Samples regret_ms;
  bench::Samples now_regret_ms;
  bench::Samples error;     // Of predicted against measured time to first token, relative
  double within_bound = 0;  // Part of the requests that were faster than their predicted bound
  double same = 0;          // Part of the decisions that the scheduler would take again
  double refused = 0;
};

// Workers that have not measured themselves are taken to have the costs of `options.workers[0]`.
Judgement judge(const std::vector<scheduler::DecisionRecord>& log, const ClusterOptions& options);

// --replay-decisions: reads, judges, prints, writes --json.
Status replay_decisions(const Settings& settings);

}  // namespace tandem::simulator

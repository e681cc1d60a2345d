// A simulated cluster: workers and their network on a virtual clock, driven by the real scheduler
// through the interface that the router uses, in the router's order. Given the same input the
// result is the same to the last bit.
//
// simulate() runs in the caller's thread and holds no state.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bench/record.h"
#include "common/config.h"
#include "scheduler/decision_log.h"
#include "simulator/load.h"
#include "simulator/worker.h"

namespace tandem::simulator {

struct ClusterOptions {
  Config config;  // Policy, ratio, objectives and limits, as a router reads them
  std::vector<WorkerSpec> workers;
  double network_bytes_per_second = 20e9;  // Per worker and direction: 80% of 200 Gbit/s
  double network_delay_s = 50e-6;          // From the last byte sent to the sequence joined
  double link_delay_s = 300e-6;            // Of a command or an event
  double report_period_s = 0.05;           // Workers report changes no more often
  double role_period_s = 1.0;              // Between two questions for role changes
  int max_tokens = 2048;                   // What clients ask for; more where the answer is longer

  // A prompt's prefix that another worker holds is copied from there before the prompt runs, where
  // that takes less time than computing it.
  bool pull_prefixes = false;

  bool token_times = false;  // Every token's time, else only the first's and the last's
  bool decisions = false;    // Record them
  // Gives up once this many requests have missed a limit; below 0: never.
  int64_t misses_max = -1;
};

struct TimelinePoint {
  double at_s = 0;
  std::map<Role, int> roles;
  int switching = 0;
  int queued = 0;    // In the scheduler
  int prompts = 0;   // On workers, not yet computed
  int decoding = 0;  // Sequences
};

struct RoleChange {
  double at_s = 0;
  std::string worker;
  Role from = Role::kDecode;
  Role to = Role::kDecode;
  std::string reason;
};

struct ClusterResult {
  bench::RunRecords records;
  int64_t requests = 0;
  int64_t within_ttft = 0;
  int64_t within_tpot = 0;
  int64_t within_both = 0;
  bool gave_up = false;
  std::vector<TimelinePoint> timeline;  // Every role_period_s
  std::vector<RoleChange> role_changes;
  std::vector<scheduler::DecisionRecord> decisions;
  std::map<std::string, int64_t> choices;  // "remote backlog" to how often
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t pulled_tokens = 0;
  int64_t parked = 0;
  int64_t resumed = 0;  // Attempts that a change of role sent elsewhere
  int64_t events = 0;
  double network_bytes = 0;
  double prefill_busy =
      0;  // Mean share of time that prefill workers' engines ran, at their last role
  double decode_busy = 0;  // The others'

  double attainment() const {
    return requests > 0 ? static_cast<double>(within_both) / static_cast<double>(requests) : 0;
  }
};

// Requires: every worker's costs are valid, `requests` are in order of time.
ClusterResult simulate(const ClusterOptions& options, std::span<const SimRequest> requests);

}  // namespace tandem::simulator

// What the user asked tandem-sim to do, and the cluster that follows from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/options.h"
#include "scheduler/profiles.h"
#include "simulator/cluster.h"

namespace tandem::simulator {

// "4:4", "auto", "auto:1:7", "coupled", "coupled:512".
struct Split {
  enum class Kind { kFixed, kAuto, kCoupled };
  Kind kind = Kind::kAuto;
  int prefill = 0;  // At the start; kAuto: 0 is an equal split
  int decode = 0;
  int chunk_tokens = 0;  // kCoupled; 0: dynamic
};
Result<Split> parse_split(const std::string& text);

struct Settings {
  std::string profile = "llama-3-8b-h100";
  std::string prefill_profile;  // Empty: `profile`
  std::string decode_profile;
  int workers = 8;
  std::string split = "auto";
  std::string policy;  // Empty: slack; static_split where the split is fixed
  double ttft_ms = 2000;
  double tpot_ms = 80;
  double rate_scale = 1;  // Of a trace's times
  double rate = 0;        // Requests per second in all; above 0: instead of rate_scale
  double window_s = 0;
  uint64_t seed = 0;
  double net_gbytes = 20;  // Per worker and direction
  int decode_slots = 512;
  int prefill_slots = 4;
  int max_tokens = 2048;
  int prefill_batch_tokens = 0;
  bool pull_prefixes = false;
  std::vector<std::string> overrides;  // Configuration keys, "scheduler.queue_max=100"
  std::string decisions_file;

  bool goodput = false;
  double attainment = 0.9;
  int seeds = 1;

  std::string replay_file;

  bench::Options load;  // Trace or synthetic load, and where reports go
  bool help = false;
};

// `arguments` without the program's name. A failure says which argument is wrong and what is
// allowed.
Result<Settings> parse_settings(const std::vector<std::string>& arguments);
std::string help_text();

// Workers by profile and split, and the configuration that a router of them would read.
Result<ClusterOptions> make_cluster(const Settings& settings);

}  // namespace tandem::simulator

// Where one request goes: every worker is scored apart in one pass, pairs are formed among the best
// eight of each side, and the option with the smallest predicted time to first token plus pressure
// on decoding that meets both targets wins. docs/scheduling.md tells it with an example.
//
// Pure over WorkerLanes; owned by the slack policy; one thread.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "scheduler/prefix_index.h"
#include "scheduler/worker_lanes.h"

namespace tandem::scheduler {

struct Asked {
  const Request* request = nullptr;
  int output_tokens = 1;       // Predicted, per choice
  int64_t kv_tokens = 0;       // Promised: prompt and predicted output of all choices
  int64_t kv_tokens_full = 0;  // The same with all that may be generated
  double ttft_ms = 2000;       // Targets
  double tpot_ms = 80;
  double waited_ms = 0;
  bool hold = true;  // Rather wait than make a full decode step later than its target
  std::span<const PrefixMatch> cached;
  WorkerIndex session = -1;  // Decoded the conversation's last turn
};

struct Placed {
  enum class Kind { kPlaced, kWaitPrefill, kWaitDecode, kNoWorker, kNoDecodeWorker, kTooLarge };
  Kind kind = Kind::kWaitPrefill;
  Path path = Path::kRefuse;
  WorkerIndex prefill = -1;
  WorkerIndex decode = -1;
  std::string_view reason;
  double ttft_ms = 0;  // From now
  double tpot_ms = 0;
  double prompt_ms = 0;   // Of work on whoever computes the prompt
  int prompt_tokens = 0;  // Uncached there
  bool fallback = false;
};

class Placement {
 public:
  Placement(const Config& config, const WorkerLanes& lanes);
  Placed choose(const Asked& asked);
  // Milliseconds that the KV of the prompt is under way after the prompt's end.
  double handover_ms(double prompt_tokens, double prompt_ms) const;

 private:
  static constexpr int kBest = 8;
  struct Option {
    WorkerIndex worker = -1;
    double cost = 0;     // What it is ranked by
    double ttft_ms = 0;  // Prefill side
    double step_ms = 0;  // Decode side
    double pressure = 0;
  };
  // The eight cheapest, in order.
  struct Shortlist {
    std::array<Option, kBest> best;
    int size = 0;
    void offer(const Option& option);
  };
  struct Scan;

  int cached_on(const Asked& asked, WorkerIndex worker) const;
  int uncached_on(const Asked& asked, WorkerIndex worker) const;
  void scan_prefill(const Asked& asked, Scan& scan) const;
  void scan_decode(const Asked& asked, Scan& scan) const;
  void offer_decode(const Asked& asked, WorkerIndex index, Scan& scan) const;
  Option local_option(const Asked& asked, const Option& decode) const;
  Placed place_pair(const Asked& asked, const Scan& scan) const;
  Placed place_local(const Asked& asked, const Scan& scan, double remote_ttft_ms) const;
  Placed local(const Asked& asked, const Option& option, std::string_view reason) const;
  double penalty(const Asked& asked, double ttft_ms, double tpot_ms) const;

  const WorkerLanes& lanes_;
  const int block_tokens_;
  const double bytes_per_ms_;
  const double kv_bytes_per_token_;
  const int layers_;
  uint32_t turn_ = UINT32_MAX;  // Where the next scan begins: breaks ties
};

}  // namespace tandem::scheduler

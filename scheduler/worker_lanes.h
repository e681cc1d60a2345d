// What the scheduler knows of every worker, kept ready for scanning: a decision looks at all of
// them once. Levels follow WorkerTable's rule: max(own share, report + own changes since). The
// numbers that a scan reads are recomputed when something of that worker changes, not per scan.
//
// Owned and called by the slack policy; no threads, no clock of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <vector>

#include "scheduler/cost_model.h"
#include "scheduler/step_planner.h"
#include "scheduler/worker_table.h"

namespace tandem::scheduler {

// A worker's share of one dispatched request.
struct LaneShare {
  WorkerIndex worker = -1;
  uint64_t generation = 0;
  int64_t prompt_tokens = 0;  // Uncached, to be computed there; 0: none
  double prompt_ms = 0;
  int64_t kv_tokens = 0;  // Prompt and predicted output of all choices; 0: does not decode there
  int64_t context_tokens = 0;  // Half-way through the output
  int slots = 0;
};

// What every scan reads, and no more: a thousand of them must pass through a core's caches.
struct Lane {
  bool usable = false;  // Present and accepting
  Role role = Role::kDecode;
  int prefills = 0;  // Own prompts that are not computed yet
  int slots = 0;
  int slots_free = 0;
  int batch = 0;
  int64_t kv_free = 0;  // Less what the running sequences may grow by
  int64_t kv_capacity = 0;
  double backlog_ms = 0;        // Of prompts, as of the last change
  double running_since_ms = 0;  // Of the prompt that runs: scans take its progress off
  double running_ms = 0;
  double a0_ms = 0, a1_ms = 0, a2_ms = 0;                  // Prefill, margin included
  double steps_per_token = 0;                              // Of prompts; 0: one step each
  double step_ms = 0;                                      // A decode step as it is
  double kv_share = 0, slot_share = 0;                     // Of a token, of a slot
  double step_per_sequence_ms = 0, step_per_token_ms = 0;  // What more of them add
  int64_t local_tokens = 0;                                // Prompt tokens beside decoding
  double local_tokens_per_step = 0;                        // What fits a step beside it

  bool prefills_for_others() const { return usable && role == Role::kPrefill; }
  bool decodes() const { return usable && serves_decode(role); }
  // Runs prompts beside its decoding as a matter of course.
  bool couples() const { return decodes() && role != Role::kDecode; }
  double prefill_ms(double first, double count) const {
    const double steps = std::max(1.0, std::ceil(count * steps_per_token));
    return a0_ms * steps + a1_ms * count + a2_ms * count * (count + 2 * first);
  }
  double waiting_ms(double now_ms) const {
    return std::max(0.0, backlog_ms - std::clamp(now_ms - running_since_ms, 0.0, running_ms));
  }
};

class WorkerLanes {
 public:
  // `slo_tpot_ms`: what a step may take. Requires: a valid profile in `config`.
  explicit WorkerLanes(const Config& config);

  void join(WorkerIndex index, const WorkerState& state);
  void update(WorkerIndex index, const WorkerState& state);
  void leave(WorkerIndex index);
  void observe(WorkerIndex index, const StepSample& sample);
  // Time passed: prompts that began since the last call began now.
  void set_now(double now_ms);

  void take(LaneShare& share);              // Fills generation
  void end_prompt(const LaneShare& share);  // Requires: once per share with prompt tokens
  void release(const LaneShare& share);     // The decode part

  const std::vector<Lane>& all() const { return lanes_; }
  const Lane& at(WorkerIndex index) const { return lanes_[static_cast<size_t>(index)]; }
  bool present(WorkerIndex index) const {
    return index >= 0 && static_cast<size_t>(index) < lanes_.size() &&
           details_[static_cast<size_t>(index)].present;
  }
  const CostModel& model(WorkerIndex index) const {
    return *details_[static_cast<size_t>(index)].model;
  }
  double now_ms() const { return now_ms_; }
  bool trusted() const { return trusted_; }  // The models begin with a profile
  // The mean worker, for requests that are not bound to one yet.
  const CostParameters& typical();
  // Usable ones, ascending.
  const std::vector<WorkerIndex>& prefillers() const { return prefillers_; }  // Of that role
  const std::vector<WorkerIndex>& decoders() const { return decoders_; }
  int usable_prefill() const { return static_cast<int>(prefillers_.size()); }
  int usable_decode() const { return static_cast<int>(decoders_.size()); }
  int usable_coupled() const { return usable_coupled_; }

 private:
  // The rest of a worker, at the same index.
  struct Detail {
    bool present = false;
    uint64_t generation = 0;
    Level prefill_us;  // Prompt work in microseconds
    Level prefill_tokens;
    Level kv_tokens;
    Level context_tokens;
    Level slots_busy;
    std::deque<double> prompts_ms;  // Own prompts in order of dispatch
    bool restart_clock = false;     // The next own prompt began between two looks at the clock
    std::unique_ptr<CostModel> model;
  };

  Lane& lane(WorkerIndex index) { return lanes_[static_cast<size_t>(index)]; }
  Detail& detail(WorkerIndex index) { return details_[static_cast<size_t>(index)]; }
  bool holds(const LaneShare& share);  // Is the worker still the one that it was taken from?
  void report(WorkerIndex index, const WorkerState& state);
  void refresh(WorkerIndex index);
  void list(WorkerIndex index);

  CostParameters prior_;
  bool trusted_ = false;
  double slo_tpot_ms_ = 80;
  std::vector<Lane> lanes_;
  std::vector<Detail> details_;
  std::vector<WorkerIndex> restarted_;
  uint64_t generations_ = 0;
  double now_ms_ = 0;
  std::vector<WorkerIndex> prefillers_;
  std::vector<WorkerIndex> decoders_;
  int usable_coupled_ = 0;
  CostParameters typical_;
  int typical_age_ = 0;  // Changes since it was computed; below 0: not yet
};

}  // namespace tandem::scheduler

// What each worker can take: what it said last, corrected by what this scheduler has dispatched
// since.
//
// A report describes the past: commands on their way are not in it, and several routers share a
// worker. Every quantity is therefore max(own share, report + own changes since the report), which
// neither counts a dispatch twice nor forgets one. Owned and called by the scheduler; no threads.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/scheduler.h"

namespace tandem::scheduler {

// A level that a worker reports and that we change in between.
class Level {
 public:
  void report(int64_t value) {
    reported_ = value;
    since_report_ = 0;
  }
  void add(int64_t amount) {
    own_ += amount;
    since_report_ += amount;
  }
  int64_t own() const { return own_; }
  int64_t value() const;

 private:
  int64_t own_ = 0;
  int64_t reported_ = 0;
  int64_t since_report_ = 0;
};

// What one request takes of a decode worker.
struct DecodeShare {
  int64_t kv_tokens = 0;
  int slots = 0;
};

struct Worker {
  WorkerState state;
  bool present = false;
  uint64_t generation = 0;  // Distinguishes a worker from the next one with the same index
  Level prefill_tokens;     // Uncached prompt tokens waiting or running
  int prefills = 0;         // Own requests whose prompt is not computed yet
  int local_prefills = 0;  // Those of them that run on a decode worker for want of a prefill worker
  Level kv_tokens;
  Level slots_busy;

  bool fits(const DecodeShare& share) const;            // Now
  bool could_ever_fit(const DecodeShare& share) const;  // When idle
  // The fuller of KV and slots after taking `share`, 0 to 1.
  double fullness_with(const DecodeShare& share) const;
};

class WorkerTable {
 public:
  void join(WorkerIndex index, const WorkerState& state);
  void update(WorkerIndex index, const WorkerState& state);
  void leave(WorkerIndex index);

  // Requires: 0 <= index < size().
  Worker& at(WorkerIndex index) { return workers_[static_cast<size_t>(index)]; }
  const Worker& at(WorkerIndex index) const { return workers_[static_cast<size_t>(index)]; }
  // The worker, if it is still the one with this generation.
  Worker* find(WorkerIndex index, uint64_t generation);
  int size() const { return static_cast<int>(workers_.size()); }

  // Microseconds per uncached prompt token: measured, else the mean of the measured ones.
  double prefill_us_per_token(const Worker& worker) const;
  // Seconds until the prefill workers have computed their backlog and `queued_tokens` more.
  double prefill_drain_seconds(int64_t queued_tokens) const;
  // Seconds until the decode workers have generated `tokens`; 0 when nothing has been measured yet.
  double decode_drain_seconds(int64_t tokens) const;

 private:
  std::vector<Worker> workers_;
  uint64_t generations_ = 0;
};

}  // namespace tandem::scheduler

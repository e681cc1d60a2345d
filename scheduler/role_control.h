// Which role every worker should have: follows the load's shape, compares what the present roles
// carry with what others would, and moves one worker at a time where that pays. Rules:
// docs/scheduling.md, "Roles".
//
// Owned and called by the slack policy; time enters as an argument. Pure; one thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "scheduler/capacity.h"
#include "scheduler/scheduler.h"

namespace tandem::scheduler {

// How many workers of each role.
struct Roles {
  int prefill = 0;
  int decode = 0;
  int coupled = 0;
  int total() const { return prefill + decode + coupled; }
  bool operator==(const Roles&) const = default;
};

// What the last requests were like. Recent ones count more, but never fewer than some dozens.
class LoadAverages {
 public:
  struct Arrival {
    double prompt_tokens = 0;
    double uncached_tokens = 0;
    double prefill_ms = 0;
    double predicted_output_tokens = 0;
  };
  // Counts halve about every memory_seconds, but the last memory_requests always count in full.
  explicit LoadAverages(double memory_seconds = 8, double memory_requests = 32)
      : memory_seconds_(memory_seconds), memory_requests_(memory_requests) {}

  void arrived(const Arrival& arrival, TimePoint now);
  void ended(int output_tokens);
  // `sequences` have been decoding at `step_ms` since the last call: their tokens count before
  // they end, so that long answers show at once.
  void decoding(double sequences, double step_ms, TimePoint now);
  // Nothing while too little is known.
  std::optional<LoadShape> shape() const;
  double per_second(TimePoint now) const;

 private:
  void decay(double& count, std::initializer_list<double*> sums, double seconds) const;

  double memory_seconds_, memory_requests_;
  double count_ = 0, prompt_ = 0, uncached_ = 0, prefill_ = 0, prefill2_ = 0, predicted_ = 0;
  double ended_ = 0, tokens_ = 0, ended_tokens_ = 0;
  double gaps_ = 0, gaps2_ = 0;  // Seconds between arrivals
  double rate_ = 0;              // Arrivals, decayed by time alone
  TimePoint last_arrival_{}, last_decode_{}, begin_{};
  RecentQuantiles prefill_times_;
};

// The same on two time scales: splits between roles follow the load of the moment, whether workers
// are coupled or separate follows what the load is like in the long run.
class LoadHistory {
 public:
  void arrived(const LoadAverages::Arrival& arrival, TimePoint now) {
    recent_.arrived(arrival, now);
    long_.arrived(arrival, now);
  }
  void ended(int output_tokens) {
    recent_.ended(output_tokens);
    long_.ended(output_tokens);
  }
  void decoding(double sequences, double step_ms, TimePoint now) {
    recent_.decoding(sequences, step_ms, now);
    long_.decoding(sequences, step_ms, now);
  }
  std::optional<LoadShape> shape() const { return recent_.shape(); }
  std::optional<LoadShape> long_shape() const { return long_.shape(); }
  double per_second(TimePoint now) const { return recent_.per_second(now); }

 private:
  LoadAverages recent_;
  LoadAverages long_{120, 512};
};

struct RoleWorker {
  WorkerIndex worker = -1;
  Role role = Role::kDecode;
  bool usable = true;
  double drain_ms = 0;  // Until what it runs has ended
};

// What role control looks at, gathered about once a second.
struct RoleView {
  std::span<const RoleWorker> workers;
  CostParameters costs;           // Of the mean worker
  double slots = 0;               // Of the mean decoding worker
  double backlog_ms = 0;          // Prompt work that waits, per prefill-serving worker
  double waiting_for_decode = 0;  // Requests that wait for decode capacity
};

class RoleControl {
 public:
  RoleControl(const RatioConfig& ratio, const Targets& targets);

  LoadHistory& load() { return load_; }
  // At most one move, none while one is in progress or where the mode only watches.
  std::optional<RoleMove> step(const RoleView& view, TimePoint now);
  void failed(WorkerIndex worker, TimePoint now);
  void left(WorkerIndex worker);
  Recommendation recommendation() const { return recommendation_; }

  // Requests per second that `roles` carry.
  double capacity(const Roles& roles, const LoadShape& shape, const RoleView& view) const;
  // The roles that carry most, within the bounds. What is together or separate now stays so unless
  // the other is clearly better for `lasting`, the load in the long run.
  Roles best(const Roles& now, const LoadShape& shape, const LoadShape& lasting,
             const RoleView& view) const;

 private:
  bool allowed(const Roles& roles) const;
  double apart(int workers, const LoadShape& shape, const RoleView& view) const;
  Roles best_separate(int workers, const LoadShape& shape, const RoleView& view) const;
  std::optional<RoleMove> toward(const Roles& now, const Roles& target, const LoadShape& shape,
                                 const RoleView& view, TimePoint at, double demand, bool urgent);
  WorkerIndex pick(Role from, const RoleView& view, TimePoint now) const;
  void recommend(const LoadShape& shape, const RoleView& view, double demand);

  const RatioConfig ratio_;
  const Targets targets_;
  LoadHistory load_;
  Recommendation recommendation_;
  std::optional<bool> together_;  // Where the last move led: coupled, or separate
  WorkerIndex pending_ = -1;
  Role pending_role_ = Role::kDecode;
  TimePoint pending_since_{};
  TimePoint next_move_{};
  TimePoint pause_until_{};  // After a move that failed
  std::unordered_map<WorkerIndex, TimePoint> moved_;
};

}  // namespace tandem::scheduler

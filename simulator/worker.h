// A simulated worker: one engine that runs steps of decoding sequences and prompt tokens, with the
// times of a cost profile. What it runs follows from what it is sent; its role only says what that
// is. Continuous batching, KV capacity, prefix cache and parking are here; time passes outside.
//
// Owned by the cluster; one thread. Times are seconds of the virtual clock.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <queue>
#include <span>
#include <string>
#include <vector>

#include "scheduler/cost_model.h"
#include "scheduler/scheduler.h"
#include "scheduler/step_planner.h"
#include "simulator/prefix_cache.h"

namespace tandem::simulator {

struct WorkerSpec {
  std::string name;
  Role role = Role::kDecode;
  scheduler::CostParameters costs;
  int prefill_slots = 4;   // What it reports while it is a prefill worker
  int decode_slots = 512;  // Else
  // A coupled worker's steps have this many tokens; 0: as many as the targets leave room for.
  int chunk_tokens = 0;
  // A prefill worker computes prompts of up to this many tokens together; 0: one at a time.
  int prefill_batch_tokens = 0;
  int block_tokens = 512;               // Of the prefix cache; 0: no cache
  double host_bytes_per_second = 25e9;  // To and from host memory, where sequences are parked
};

// Names a request's attempt: what is said of an earlier one is ignored.
struct AttemptId {
  int request = -1;
  int attempt = 0;
  bool operator==(const AttemptId&) const = default;
};

struct PromptJob {
  AttemptId id;
  int tokens = 0;
  std::span<const uint64_t> blocks;
  bool local = false;  // Decodes here afterwards
  int cached = 0;      // Found when it starts
  int done = 0;        // Cached ones included
  double started_s = -1;
};

struct Sequence {
  AttemptId id;
  int emitted = 0;        // Tokens of the answer so far
  int output_tokens = 0;  // Of the answer in all
  int64_t context = 0;    // When it joined
  double first_token_s = 0;
  double tpot_ms = 0;  // Target
  std::span<const uint64_t> blocks;
  int64_t joined_step = 0;
};

// A stretch of an answer: `count` tokens from the step `first_step` of this worker on.
struct Stretch {
  int request = -1;
  int worker = -1;
  int64_t first_step = 0;
  int count = 0;
};

struct StepStart {
  double seconds = 0;
  std::vector<PromptJob> started;  // Prompts whose computation begins with it
};

struct StepEnd {
  std::vector<PromptJob> prompts;   // Computed
  std::vector<Sequence> sequences;  // Ended
};

class Worker {
 public:
  Worker(int index, WorkerSpec spec, double tpot_ms, bool keep_steps);

  void add_prompt(const PromptJob& job, double now_s);
  bool drop_prompt(const AttemptId& id);  // One that has not started
  // KV that is on its way here.
  void promise(int64_t tokens) { promised_tokens_ += tokens, ++promised_; }
  void redeem(int64_t tokens) { promised_tokens_ -= tokens, --promised_; }
  void join(const Sequence& sequence) { arrived_.push_back(sequence); }

  // The prefix cache, for copies between workers.
  int cached_blocks(std::span<const uint64_t> blocks) const {
    return spec_.block_tokens > 0 ? cache_.match(blocks) : 0;
  }
  void keep(std::span<const uint64_t> blocks);

  bool busy() const { return busy_; }
  // Nothing to do: none. Requires: !busy().
  std::optional<StepStart> begin_step(double now_s);
  void end_step(double now_s, StepEnd& out);
  // When a parked sequence can be back, if that is all there is to wait for.
  std::optional<double> wake_s(double now_s) const;

  // Takes everything that decodes out, as it stands. Requires: !busy().
  std::vector<Sequence> evict_sequences(double now_s);
  std::vector<PromptJob> evict_prompts();
  bool has_sequences() const { return running_ > 0 || !arrived_.empty() || !parked_.empty(); }
  bool has_prompts() const { return !prompts_.empty(); }
  bool has_promises() const { return promised_ > 0; }

  scheduler::WorkerState report(bool accepting) const;
  // Since the last call.
  std::vector<scheduler::StepSample> take_samples() { return std::exchange(samples_, {}); }
  std::vector<scheduler::CacheEvent> take_cache_events() { return std::exchange(events_, {}); }

  Role role() const { return spec_.role; }
  void set_role(Role role) { spec_.role = role; }
  const WorkerSpec& spec() const { return spec_; }
  const std::vector<double>& step_ends() const { return step_ends_; }
  const std::vector<Stretch>& stretches() const { return stretches_; }
  int64_t steps() const { return step_; }
  int64_t parked_total() const { return parked_total_; }
  double busy_s() const { return busy_s_; }
  int running() const { return running_; }
  int prompts() const { return static_cast<int>(prompts_.size()); }

 private:
  struct Finish {
    int64_t step;
    uint64_t serial;
    size_t slot;
    bool operator>(const Finish& other) const {
      return std::tie(step, serial) > std::tie(other.step, other.serial);
    }
  };
  struct Slot {
    Sequence sequence;
    uint64_t serial = 0;  // 0: free
  };
  struct Parked {
    Sequence sequence;
    double ready_s = 0;
  };
  struct Part {
    size_t prompt;
    int tokens;
  };

  bool fits(int64_t context) const {
    return context_ + prompt_context_ + context <= spec_.costs.kv_tokens_capacity;
  }
  int tokens_of(const Sequence& sequence) const {
    return sequence.emitted + static_cast<int>(step_ - sequence.joined_step);
  }
  double slack_ms(const Sequence& sequence, double now_s) const;
  void admit(double now_s);
  void start(const Sequence& sequence);
  Sequence stop(size_t slot);
  void plan_prompts(double now_s, StepStart& out);
  void begin_prompt(PromptJob& job, double now_s, StepStart& out);
  double step_ms();
  void park(double now_s);
  int64_t cache_blocks_max() const;
  void sample(double ms);

  const int index_;
  WorkerSpec spec_;
  const double tpot_ms_;
  const bool keep_steps_;
  PrefixCache cache_;
  std::deque<PromptJob> prompts_;  // In the order of their arrival
  std::deque<Sequence> arrived_;   // Their KV is here
  std::deque<Parked> parked_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_slots_;
  std::priority_queue<Finish, std::vector<Finish>, std::greater<>> finishes_;
  uint64_t serials_ = 0;
  int running_ = 0;
  int64_t context_ = 0;         // Sum over running sequences
  int64_t prompt_context_ = 0;  // Prompts that have started
  int64_t promised_tokens_ = 0;
  int promised_ = 0;
  int64_t step_ = 0;
  bool busy_ = false;
  std::vector<Part> parts_;  // Of the running step
  double step_began_s_ = 0;
  double progress_s_ = 0;  // When prompt tokens last ran, or came to an empty queue
  double decode_step_ms_ = 0;
  double prefill_us_per_token_ = 0;
  std::vector<double> slacks_;
  std::vector<scheduler::StepSample> samples_;
  std::vector<scheduler::CacheEvent> events_;
  std::vector<double> step_ends_;
  std::vector<Stretch> stretches_;
  int64_t parked_total_ = 0;
  double busy_s_ = 0;
};

}  // namespace tandem::simulator

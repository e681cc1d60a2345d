// Scheduler: which workers serve a request, now, later or not at all. Pure decisions: no threads,
// sockets, wall clock or randomness of its own, so that the router and a simulator run the same
// code.
//
// Owned and called by one thread (the router's scheduling strand). Time enters as an argument. The
// caller reports what workers say and what becomes of requests; it gets decisions back, in order.
// Every accepted ticket gets exactly one decision, and must be finished() exactly once after a
// dispatch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/config.h"
#include "common/status.h"
#include "common/types.h"

namespace tandem::scheduler {

using WorkerIndex =
    int;  // Given by the caller, unique among present workers; reused after worker_left()
using Ticket = uint64_t;

// What a worker has said of itself last.
struct WorkerState {
  std::string name;
  Role role = Role::kDecode;
  bool accepting = true;  // Connected, same model as the others, not draining
  int slots = 0;
  int slots_free = 0;
  int64_t kv_tokens_capacity = 0;
  int64_t kv_tokens_used = 0;      // Joined sequences
  int64_t kv_tokens_reserved = 0;  // Promised on the worker, by any router
  int64_t prefill_backlog_tokens = 0;
  double decode_step_ms = 0;        // Smoothed; 0 before the first
  double prefill_us_per_token = 0;  // Smoothed; 0 before the first
};

// What a worker measured of one step, for the cost model. Values that are not finite, negative or
// beyond an hour are dropped and counted.
struct StepSample {
  int prompt_first = 0;        // Position of the first prompt token of the step
  int prompt_tokens = 0;       // 0: a pure decode step
  int sequences = 0;           // Decoding; 0: a pure prefill chunk
  int64_t context_tokens = 0;  // Sum over the decoding sequences
  double ms = 0;
};

// A worker keeps (or has dropped) the KV of a prompt block. `hash` is the chained hash that
// Request::blocks uses.
struct CacheEvent {
  uint64_t hash = 0;
  bool stored = true;
};

// A worker shall change its role. The caller drains it, has it switch, and reports the new role
// with worker_updated(); until then no other move is asked for.
struct RoleMove {
  WorkerIndex worker = -1;
  Role to = Role::kDecode;
  std::string reason;
};

struct Request {
  int prompt_tokens = 0;  // With emitted tokens when resumed
  int cached_tokens = 0;  // Of the prompt, known to be in a prefill worker's cache; 0 when unknown
  int max_tokens = 0;     // Output still to come, per choice
  int choices = 1;
  std::string tenant;
  int priority = 0;     // Lower first
  Duration ttft_slo{};  // Zero: the configuration's
  Duration tpot_slo{};
  bool refuse_on_miss = false;   // The client asked for a refusal rather than a late answer
  std::vector<uint64_t> blocks;  // Chained hashes of the prompt's full blocks; empty: unknown
  uint64_t session = 0;          // Turns of one conversation; 0: none
  // Of the prompt's content, the same when a client sends it again; 0: unknown. A client that was
  // told to come back is known by it.
  uint64_t fingerprint = 0;
  TimePoint deadline{};            // Zero: none of its own; the queue deadline always holds
  bool prefill_only = false;       // max_tokens is 1: no decode leg
  std::vector<WorkerIndex> avoid;  // Workers that have just failed this request
};

enum class Path { kRemote, kLocal, kPrefillOnly, kRefuse };

struct Decision {
  Ticket ticket = 0;
  Path path = Path::kRefuse;
  WorkerIndex prefill = -1;  // kRemote, kPrefillOnly
  WorkerIndex decode = -1;   // kRemote, kLocal
  std::string reason;  // For X-Tandem-Decision: "backlog", "credits", "coupled", "round_robin"; or
                       // why refused
  ErrorCode code = ErrorCode::kOk;  // kRefuse: kResourceExhausted, kUnavailable, kDeadlineExceeded;
                                    // kInvalidArgument: never
  double retry_after_seconds = 0;   // kRefuse: computed from backlog and service rates, 1 to 60
  double predicted_ttft_ms = 0;     // From submit(); median
  double predicted_ttft_bound_ms = 0;  // 90% of the requests are expected to be faster
  double predicted_tpot_ms = 0;
};

// How many workers of each role the load of the last minutes needs. For autoscalers.
struct Recommendation {
  int prefill = 0;
  int decode = 0;
  std::string reason;
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  virtual void worker_joined(WorkerIndex worker, const WorkerState& state) = 0;
  virtual void worker_updated(WorkerIndex worker, const WorkerState& state) = 0;
  // Its requests are the caller's to finish() or to submit() again.
  virtual void worker_left(WorkerIndex worker) = 0;

  // What workers measured and what their caches hold; both optional.
  virtual void observe(WorkerIndex, const StepSample&) {}
  virtual void cache_changed(WorkerIndex, std::span<const CacheEvent>) {}

  // Queues a request. Its decision comes from the next poll() or a later one.
  virtual void submit(Ticket ticket, const Request& request, TimePoint now) = 0;
  // The client went away while the request was queued. No decision will come for it.
  virtual void withdraw(Ticket ticket) = 0;
  // Decisions that can be taken now, refusals and expired waits included.
  virtual std::vector<Decision> poll(TimePoint now) = 0;
  // When poll() could next change its mind by time alone; TimePoint::max() when nothing is queued.
  virtual TimePoint next_wakeup() const = 0;

  // The prompt of a dispatched request is computed: its prefill share is free again.
  virtual void prefill_finished(Ticket ticket) = 0;
  // The client has its first token: the prediction can be compared with it.
  virtual void first_token(Ticket, TimePoint) {}
  // A dispatched request ended, however. Its whole share is free again. `output_tokens` per choice
  // teaches the predictor of output lengths; negative: unknown (cancelled, failed).
  virtual void finished(Ticket ticket, int output_tokens) = 0;

  // Role changes to carry out, at most one in progress at a time. Called about once a second.
  virtual std::vector<RoleMove> role_moves(TimePoint) { return {}; }
  // The worker of the last move could not switch.
  virtual void role_move_failed(WorkerIndex, TimePoint) {}
  virtual Recommendation recommendation() const { return {}; }

  // What a client that is refused now for the caller's reasons should wait; books nothing.
  virtual double retry_after_seconds(TimePoint) const { return 1; }

  virtual int queued() const = 0;
  virtual int dispatched() const = 0;
};

std::unique_ptr<Scheduler> make_scheduler(const Config& config);

}  // namespace tandem::scheduler

// Timeline: what became of recent requests, for GET /v1/requests/{id}.
//
// Owned by the router; a ring of RouterConfig::timelines_max records. Thread-safe: the flow, the
// dispatcher and the admin server touch it, each for a moment and a dozen times per request, never
// per token. Records that were overwritten ignore further notes.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/types.h"
#include "link/messages.h"

namespace tandem::router {

class Timeline {
 public:
  Timeline(size_t records_max, const Clock& clock) : records_max_(records_max), clock_(clock) {}

  // A new record; its number names it below.
  uint64_t begin(const std::string& request_id, std::string_view endpoint, int64_t received_us);
  // The first note of a name stays.
  void note(uint64_t record, std::string_view name);
  // The last one stays.
  void note_last(uint64_t record, std::string_view name);
  void tokens(uint64_t record, int64_t prompt, int64_t completion);
  void end(uint64_t record, std::string_view outcome, int status);

  void attempt_queued(uint64_t record, TransferId transfer, int prompt_tokens, bool resumed);
  struct Placement {
    std::string_view path, prefill, decode, reason;
    double predicted_ttft_ms = 0;  // From the queue on; median, and what 90% should keep to
    double predicted_ttft_bound_ms = 0;
  };
  void attempt_dispatched(uint64_t record, TransferId transfer, const Placement& placement);
  void attempt_first_token(uint64_t record, TransferId transfer, double ttft_ms);
  void attempt_prefilled(uint64_t record, const link::PrefillDone& done);
  void attempt_ended(uint64_t record, TransferId transfer, std::string_view outcome);
  // Finds the record by the transfer; workers' events outlive the attempt.
  void worker_event(const link::LegEvent& event);

  // The newest record of that id, as JSON.
  std::optional<std::string> json(const std::string& request_id) const;
  size_t size() const;

 private:
  using Times = std::vector<std::pair<std::string, int64_t>>;
  struct Attempt {
    TransferId transfer;
    std::string path, prefill, decode, reason, outcome;
    int prompt_tokens = 0;
    int cached_tokens = 0;
    int computed_tokens = 0;
    bool resumed = false;
    double predicted_ttft_ms = 0;
    double predicted_ttft_bound_ms = 0;
    double ttft_ms = 0;  // Measured from the queue on
    int64_t kv_bytes = 0;
    std::vector<std::pair<int64_t, int64_t>> landed;
    Times times;
  };
  struct Record {
    uint64_t number = 0;
    std::string id;
    std::string endpoint;
    std::string outcome = "running";
    int status = 0;
    int64_t prompt_tokens = 0;
    int64_t completion_tokens = 0;
    Times times;
    std::vector<Attempt> attempts;
    int attempts_left_out = 0;
  };

  static void set(Times& times, std::string_view name, int64_t at_us, bool keep_first);
  // These require mutex_ to be held.
  Record* find(uint64_t number);
  Attempt* find_attempt(uint64_t number, TransferId transfer);
  void drop_oldest();

  const size_t records_max_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::deque<Record> records_;  // Guarded by mutex_, as is all that follows; ascending numbers
  uint64_t next_ = 1;
  std::unordered_map<std::string, uint64_t> newest_;    // By request id
  std::unordered_map<TransferId, uint64_t> transfers_;  // Of the attempts kept
};

}  // namespace tandem::router

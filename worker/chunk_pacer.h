// ChunkPacer: when a prompt chunk may start beside running answers, so that their time per token
// holds. Chunk borders never move; only the start does.
//
// A chunk waits worker.chunk_wait_ms at most, and not at all once waiting has been seen not to
// help: when steps take longer than they may with no chunk beside them. On a thread of their own,
// chunks wait no longer than decode's share of the time, so that prefill keeps its own.
//
// The decoding side reports what its sequences have saved against their targets after every step;
// the prompt side asks before every chunk. In a coupled worker both are one thread and a chunk
// delays the next step by its whole length. In a partitioned one they are two threads, and a chunk
// only waits while the answers are behind: it takes no time of theirs. Any thread.
#pragma once

#include <mutex>
#include <vector>

#include "common/clock.h"
#include "common/config.h"
#include "engine/chunk_grid.h"
#include "scheduler/cost_model.h"

namespace tandem::worker {

class ChunkPacer {
 public:
  // `config` outlives this.
  explicit ChunkPacer(const Config& config);

  // A role begins; nobody decodes yet. `apart`: chunks will run on a thread of their own.
  void begin(bool apart);

  // After a step: milliseconds saved by each sequence that decodes, the tightest target among them,
  // and how long the step took. Nobody decodes: an empty `slack_ms`.
  void stepped(const std::vector<double>& slack_ms, double tpot_ms, double step_ms);
  // A chunk took this long.
  void computed(const Chunk& chunk, Duration busy);

  // When the chunk may start: `now` or before, at once; else ask again then.
  TimePoint start_of(const Chunk& chunk, TimePoint now);

 private:
  Duration wait_max(double chunk_ms) const;

  const Config& config_;
  std::mutex mutex_;
  bool apart_ = false;  // Guarded by mutex_, as all below
  scheduler::CostModel costs_;
  double budget_ms_ = 0;  // For the next step with a chunk in it; meaningless if nobody decodes
  double step_ms_ = 0;
  bool decoding_ = false;
  TimePoint waiting_since_{};  // Of the chunk that is held; zero: none
  int steps_held_ = 0;         // Since then
  bool hopeless_ = false;      // Waiting does not help
};

}  // namespace tandem::worker

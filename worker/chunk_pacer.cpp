#include "worker/chunk_pacer.h"

#include <algorithm>

#include "scheduler/scheduler.h"
#include "scheduler/step_planner.h"

namespace tandem::worker {
namespace {

// How often a held chunk is looked at again when no step ends meanwhile.
constexpr auto kLookAgain = std::chrono::milliseconds(5);

}  // namespace

ChunkPacer::ChunkPacer(const Config& config)
    : wait_max_(config.worker.chunk_wait),
      costs_(scheduler::CostParameters::from(config.sim), config.model.engine == "sim") {}

void ChunkPacer::begin(bool apart) {
  const std::lock_guard lock(mutex_);
  apart_ = apart;
  decoding_ = false;
  waiting_since_ = TimePoint{};
}

void ChunkPacer::stepped(const std::vector<double>& slack_ms, double tpot_ms, double step_ms) {
  const std::lock_guard lock(mutex_);
  decoding_ = !slack_ms.empty();
  step_ms_ = step_ms;
  scheduler::StepState state;
  state.slack_ms = slack_ms;
  state.tpot_ms = tpot_ms;
  budget_ms_ = scheduler::step_budget_ms(state, {});
}

void ChunkPacer::computed(const Chunk& chunk, Duration busy) {
  const std::lock_guard lock(mutex_);
  waiting_since_ = TimePoint{};
  costs_.observe({chunk.first, chunk.count, 0, 0, to_ms(busy)});
}

TimePoint ChunkPacer::start_of(const Chunk& chunk, TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (!decoding_) return now;
  const double chunk_ms = apart_ ? 0 : costs_.parameters().prefill_ms(chunk.first, chunk.count);
  if (step_ms_ + chunk_ms <= budget_ms_) return now;
  if (waiting_since_ == TimePoint{}) waiting_since_ = now;
  if (now - waiting_since_ >= wait_max_) return now;
  return std::min<TimePoint>(now + kLookAgain, waiting_since_ + wait_max_);
}

}  // namespace tandem::worker

#include "worker/chunk_pacer.h"

#include <algorithm>

#include "scheduler/scheduler.h"
#include "scheduler/step_planner.h"

namespace tandem::worker {
namespace {

// How often a held chunk is looked at again when no step ends meanwhile.
constexpr auto kLookAgain = std::chrono::milliseconds(5);
// Of the steps that end while a chunk is held, the second has seen no chunk from its start on.
constexpr int kStepsToJudge = 2;

}  // namespace

ChunkPacer::ChunkPacer(const Config& config)
    : config_(config),
      costs_(scheduler::CostParameters::from(config.sim), config.model.engine == "sim") {}

void ChunkPacer::begin(bool apart) {
  const std::lock_guard lock(mutex_);
  apart_ = apart;
  decoding_ = hopeless_ = false;
  waiting_since_ = TimePoint{};
}

void ChunkPacer::stepped(const std::vector<double>& slack_ms, double tpot_ms, double step_ms) {
  const std::lock_guard lock(mutex_);
  decoding_ = !slack_ms.empty();
  step_ms_ = step_ms;
  scheduler::StepState state;
  state.tpot_ms = tpot_ms;
  const double plain_ms = scheduler::step_budget_ms(state, {});  // Without savings
  state.slack_ms = slack_ms;
  budget_ms_ = scheduler::step_budget_ms(state, {});
  if (step_ms < plain_ms) {
    hopeless_ = false;
  } else if (waiting_since_ != TimePoint{} && ++steps_held_ >= kStepsToJudge) {
    hopeless_ = true;
  }
}

void ChunkPacer::computed(const Chunk& chunk, Duration busy) {
  const std::lock_guard lock(mutex_);
  waiting_since_ = TimePoint{};
  costs_.observe({chunk.first, chunk.count, 0, 0, to_ms(busy)});
}

Duration ChunkPacer::wait_max(double chunk_ms) const {
  const Duration limit = config_.worker.chunk_wait;
  if (!apart_) return limit;
  const double share_ms = chunk_ms * config_.share.decode / config_.share.prefill;
  return std::min(limit, Duration(static_cast<int64_t>(share_ms * 1e6)));
}

TimePoint ChunkPacer::start_of(const Chunk& chunk, TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (!decoding_ || hopeless_) return now;
  const double chunk_ms = costs_.parameters().prefill_ms(chunk.first, chunk.count);
  if (step_ms_ + (apart_ ? 0 : chunk_ms) <= budget_ms_) return now;
  if (waiting_since_ == TimePoint{}) {
    waiting_since_ = now;
    steps_held_ = 0;
  }
  const TimePoint latest = waiting_since_ + wait_max(chunk_ms);
  return now >= latest ? now : std::min<TimePoint>(now + kLookAgain, latest);
}

}  // namespace tandem::worker

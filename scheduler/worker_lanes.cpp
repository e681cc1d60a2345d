#include "scheduler/worker_lanes.h"

#include <algorithm>
#include <cmath>

#include "scheduler/profiles.h"

namespace tandem::scheduler {
namespace {

// Predictions of prompt work are taken this much longer where the residuals do not say better.
constexpr double kPrefillQuantile = 0.6;
// The running sequences may grow by this many tokens each before a report corrects the picture.
constexpr int kGrowthTokens = 32;
// The part of a step's time that local prompts may fill up to.
constexpr double kStepMargin = 0.9;
// Changes of workers' models after which the mean one is computed anew.
constexpr int kTypicalChanges = 256;

}  // namespace

double Lane::waiting_ms(double now) const {
  const double done = std::clamp(now - running_since_ms, 0.0, running_ms);
  return std::max(0.0, backlog_ms - done);
}

WorkerLanes::WorkerLanes(const Config& config) : slo_tpot_ms_(to_ms(config.slo.tpot)) {
  const bool sim = config.model.engine == "sim";
  const std::string name = config.scheduler.profile;
  if (!name.empty() || sim) {
    const auto profile = find_profile(name.empty() ? "sim" : name, config.sim);
    TANDEM_CHECK(profile.ok(), profile.status().to_string());
    prior_ = profile->costs;
    trusted_ = prior_.validate().ok();
  }
  if (!trusted_) prior_ = CostParameters{};
  // What a worker says of its memory counts; the prior's does not matter.
  typical_ = prior_;
  typical_age_ = -1;
}

void WorkerLanes::count(const Lane& lane, int by) {
  if (lane.prefills_for_others()) usable_prefill_ += by;
  if (lane.decodes()) usable_decode_ += by;
  if (lane.couples()) usable_coupled_ += by;
}

void WorkerLanes::join(WorkerIndex index, const WorkerState& state) {
  TANDEM_CHECK(index >= 0, "worker index below 0");
  if (static_cast<size_t>(index) >= lanes_.size()) lanes_.resize(static_cast<size_t>(index) + 1);
  Lane& joined = lane(index);
  TANDEM_CHECK(!joined.present, "worker index joined twice");
  joined = Lane{};
  joined.present = true;
  joined.generation = ++generations_;
  joined.model = std::make_unique<CostModel>(prior_, trusted_);
  report(joined, state);
  count(joined, 1);
  typical_age_ = -1;
}

void WorkerLanes::update(WorkerIndex index, const WorkerState& state) {
  TANDEM_CHECK(index >= 0 && static_cast<size_t>(index) < lanes_.size() && at(index).present,
               "update of an absent worker");
  count(at(index), -1);
  report(lane(index), state);
  count(at(index), 1);
  ++typical_age_;
}

void WorkerLanes::leave(WorkerIndex index) {
  TANDEM_CHECK(index >= 0 && static_cast<size_t>(index) < lanes_.size() && at(index).present,
               "an absent worker left");
  count(at(index), -1);
  lane(index) = Lane{};
  typical_age_ = -1;
}

void WorkerLanes::observe(WorkerIndex index, const StepSample& sample) {
  if (index < 0 || static_cast<size_t>(index) >= lanes_.size() || !at(index).present) return;
  lane(index).model->observe(sample);
  refresh(lane(index));
  ++typical_age_;
}

void WorkerLanes::report(Lane& of, const WorkerState& state) {
  of.state = state;
  of.usable = state.accepting;
  of.role = state.role;
  of.slots = state.slots;
  of.kv_capacity = state.kv_tokens_capacity;
  of.model->hint(state.prefill_us_per_token, state.decode_step_ms);
  of.prefill_tokens.report(state.prefill_backlog_tokens);
  of.prefill_us.report(static_cast<int64_t>(static_cast<double>(state.prefill_backlog_tokens) *
                                            of.model->parameters().prefill_per_token_us));
  of.kv_tokens.report(state.kv_tokens_used + state.kv_tokens_reserved);
  of.context_tokens.report(state.kv_tokens_used);
  of.slots_busy.report(state.slots - state.slots_free);
  refresh(of);
}

void WorkerLanes::refresh(Lane& of) {
  const CostParameters& costs = of.model->parameters();
  const double margin = of.model->prefill_ratio(kPrefillQuantile);
  of.a0_ms = costs.prefill_base_ms * margin;
  of.a1_ms = costs.prefill_per_token_us * margin / 1e3;
  of.a2_ms = costs.prefill_per_token2_us * margin / 1e3;
  of.backlog_ms = static_cast<double>(of.prefill_us.value()) / 1e3;
  of.batch = static_cast<int>(of.slots_busy.value());
  of.slots_free = std::max(0, of.slots - of.batch);
  of.kv_free = of.kv_capacity - of.kv_tokens.value() -
               (of.batch > 0 ? static_cast<int64_t>(of.batch) * kGrowthTokens : 0);
  if (of.batch == 0) of.kv_free = of.kv_capacity - of.kv_tokens.value();
  const double slow = of.model->decode_ratio(0.5);
  const auto context = static_cast<double>(of.context_tokens.value());
  const DecodeCosts& decode = costs.decode_costs(of.batch + 1);
  of.step_ms = costs.decode_ms(std::max(1, of.batch), context) * slow;
  of.step_per_sequence_ms =
      (decode.per_sequence_ms +
       (costs.prefill_per_token_us * of.batch / 1e3 > decode.base_ms ? of.a1_ms : 0)) *
      slow;
  of.step_per_token_ms = decode.per_context_us / 1e3 * slow;
  of.local_tokens = of.prefill_tokens.value();
  of.local_tokens_per_step =
      of.decodes() && of.batch > 0
          ? tokens_within(costs, kStepMargin * slo_tpot_ms_, 0, of.batch, context)
          : 0;
}

void WorkerLanes::set_now(double now_ms) {
  // A clock that jumps back must not leave prompts that began in the future.
  if (now_ms < now_ms_)
    for (Lane& each : lanes_) each.running_since_ms = std::min(each.running_since_ms, now_ms);
  now_ms_ = now_ms;
  for (const WorkerIndex index : restarted_) {
    Lane& each = lane(index);
    if (each.restart_clock) each.running_since_ms = now_ms;
    each.restart_clock = false;
  }
  restarted_.clear();
}

Lane* WorkerLanes::find(const LaneShare& share) {
  if (share.worker < 0 || static_cast<size_t>(share.worker) >= lanes_.size()) return nullptr;
  Lane& found = lane(share.worker);
  return found.present && found.generation == share.generation ? &found : nullptr;
}

void WorkerLanes::take(LaneShare& share) {
  Lane& of = lane(share.worker);
  share.generation = of.generation;
  if (share.prompt_tokens > 0) {
    if (of.prompts_ms.empty()) {
      of.running_since_ms = now_ms_;
      of.running_ms = share.prompt_ms;
      of.restart_clock = false;
    }
    of.prompts_ms.push_back(share.prompt_ms);
    ++of.prefills;
    of.prefill_us.add(static_cast<int64_t>(share.prompt_ms * 1e3));
    of.prefill_tokens.add(share.prompt_tokens);
  }
  of.kv_tokens.add(share.kv_tokens);
  of.context_tokens.add(share.context_tokens);
  of.slots_busy.add(share.slots);
  refresh(of);
}

void WorkerLanes::end_prompt(const LaneShare& share) {
  Lane* of = find(share);
  if (of == nullptr || share.prompt_tokens <= 0) return;
  const auto it = std::ranges::find(of->prompts_ms, share.prompt_ms);
  if (it != of->prompts_ms.end()) of->prompts_ms.erase(it);
  --of->prefills;
  of->prefill_us.add(-static_cast<int64_t>(share.prompt_ms * 1e3));
  of->prefill_tokens.add(-share.prompt_tokens);
  of->running_ms = of->prompts_ms.empty() ? 0 : of->prompts_ms.front();
  of->running_since_ms = now_ms_;
  of->restart_clock = true;
  restarted_.push_back(share.worker);
  refresh(*of);
}

void WorkerLanes::release(const LaneShare& share) {
  Lane* of = find(share);
  if (of == nullptr) return;
  of->kv_tokens.add(-share.kv_tokens);
  of->context_tokens.add(-share.context_tokens);
  of->slots_busy.add(-share.slots);
  refresh(*of);
}

const CostParameters& WorkerLanes::typical() {
  if (typical_age_ >= 0 && typical_age_ < kTypicalChanges) return typical_;
  typical_age_ = 0;
  double count = 0;
  CostParameters sum = prior_;
  double* const to[] = {&sum.prefill_base_ms,        &sum.prefill_per_token_us,
                        &sum.prefill_per_token2_us,  &sum.decode.base_ms,
                        &sum.decode.per_sequence_ms, &sum.decode.per_context_us};
  for (double* value : to) *value = 0;
  double capacity = 0;
  for (const Lane& each : lanes_) {
    if (!each.present) continue;
    const CostParameters& p = each.model->parameters();
    const double from[] = {p.prefill_base_ms, p.prefill_per_token_us,   p.prefill_per_token2_us,
                           p.decode.base_ms,  p.decode.per_sequence_ms, p.decode.per_context_us};
    for (size_t i = 0; i < std::size(from); ++i) *to[i] += from[i];
    capacity += static_cast<double>(each.kv_capacity);
    ++count;
  }
  if (count == 0) return typical_ = prior_;
  for (double* value : to) *value /= count;
  sum.kv_tokens_capacity = std::max<int64_t>(1, static_cast<int64_t>(capacity / count));
  return typical_ = sum;
}

}  // namespace tandem::scheduler

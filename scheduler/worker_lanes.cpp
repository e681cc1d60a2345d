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
  prior_.step_tokens = config.engine.chunk_tokens;
  // What a worker says of its memory counts; the prior's does not matter.
  typical_ = prior_;
  typical_age_ = -1;
}

// Puts a worker into the lists that it belongs to now.
void WorkerLanes::list(WorkerIndex index) {
  const auto put = [index](std::vector<WorkerIndex>& into, bool belongs) {
    const auto it = std::ranges::lower_bound(into, index);
    const bool there = it != into.end() && *it == index;
    if (belongs && !there) into.insert(it, index);
    if (!belongs && there) into.erase(it);
  };
  put(prefillers_, at(index).prefills_for_others());
  put(decoders_, at(index).decodes());
  usable_coupled_ = static_cast<int>(
      std::ranges::count_if(decoders_, [&](WorkerIndex each) { return at(each).couples(); }));
}

void WorkerLanes::join(WorkerIndex index, const WorkerState& state) {
  TANDEM_CHECK(index >= 0, "worker index below 0");
  TANDEM_CHECK(!present(index), "worker index joined twice");
  if (static_cast<size_t>(index) >= lanes_.size()) {
    lanes_.resize(static_cast<size_t>(index) + 1);
    details_.resize(lanes_.size());
  }
  Detail& joined = detail(index) = Detail{};
  joined.present = true;
  joined.generation = ++generations_;
  joined.model = std::make_unique<CostModel>(prior_, trusted_);
  lane(index) = Lane{};
  report(index, state);
  list(index);
  typical_age_ = -1;
}

void WorkerLanes::update(WorkerIndex index, const WorkerState& state) {
  TANDEM_CHECK(present(index), "update of an absent worker");
  const bool usable = at(index).usable;
  const Role role = at(index).role;
  report(index, state);
  if (at(index).usable != usable || at(index).role != role) list(index);
  if (typical_age_ >= 0) ++typical_age_;
}

void WorkerLanes::leave(WorkerIndex index) {
  TANDEM_CHECK(present(index), "an absent worker left");
  lane(index) = Lane{};
  detail(index) = Detail{};
  list(index);
  typical_age_ = -1;
}

void WorkerLanes::observe(WorkerIndex index, const StepSample& sample) {
  if (!present(index)) return;
  detail(index).model->observe(sample);
  refresh(index);
  if (typical_age_ >= 0) ++typical_age_;
}

void WorkerLanes::report(WorkerIndex index, const WorkerState& state) {
  Lane& to = lane(index);
  Detail& of = detail(index);
  to.usable = state.accepting;
  to.role = state.role;
  to.slots = state.slots;
  to.kv_capacity = state.kv_tokens_capacity;
  to.kv_share = 1.0 / static_cast<double>(std::max<int64_t>(1, to.kv_capacity));
  to.slot_share = 1.0 / std::max(1, to.slots);
  of.model->hint(state.prefill_us_per_token, state.decode_step_ms);
  of.prefill_tokens.report(state.prefill_backlog_tokens);
  of.prefill_us.report(static_cast<int64_t>(static_cast<double>(state.prefill_backlog_tokens) *
                                            of.model->parameters().prefill_per_token_us));
  of.kv_tokens.report(state.kv_tokens_used + state.kv_tokens_reserved);
  of.context_tokens.report(state.kv_tokens_used);
  of.slots_busy.report(state.slots - state.slots_free);
  refresh(index);
}

void WorkerLanes::refresh(WorkerIndex index) {
  Lane& to = lane(index);
  const Detail& of = detail(index);
  const CostParameters& costs = of.model->parameters();
  const double margin = of.model->prefill_ratio(kPrefillQuantile);
  to.a0_ms = costs.prefill_base_ms * margin;
  to.steps_per_token = costs.step_tokens > 0 ? 1 / costs.step_tokens : 0;
  to.a1_ms = costs.prefill_per_token_us * margin / 1e3;
  to.a2_ms = costs.prefill_per_token2_us * margin / 1e3;
  to.backlog_ms = static_cast<double>(of.prefill_us.value()) / 1e3;
  to.batch = static_cast<int>(of.slots_busy.value());
  to.slots_free = std::max(0, to.slots - to.batch);
  to.kv_free = to.kv_capacity - of.kv_tokens.value() -
               static_cast<int64_t>(std::max(0, to.batch)) * kGrowthTokens;
  const double slow = of.model->decode_ratio(0.5);
  const auto context = static_cast<double>(of.context_tokens.value());
  const DecodeCosts& decode = costs.decode_costs(to.batch + 1);
  to.step_ms = costs.decode_ms(std::max(1, to.batch), context) * slow;
  const bool compute_bound = costs.prefill_per_token_us * to.batch / 1e3 > decode.base_ms;
  to.step_per_sequence_ms = (decode.per_sequence_ms + (compute_bound ? to.a1_ms : 0)) * slow;
  to.step_per_token_ms = decode.per_context_us / 1e3 * slow;
  to.local_tokens = of.prefill_tokens.value();
  to.local_tokens_per_step =
      to.decodes() && to.batch > 0
          ? tokens_within(costs, kStepMargin * slo_tpot_ms_, 0, to.batch, context)
          : 0;
}

void WorkerLanes::set_now(double now_ms) {
  // A clock that jumps back must not leave prompts that began in the future.
  if (now_ms < now_ms_)
    for (Lane& each : lanes_) each.running_since_ms = std::min(each.running_since_ms, now_ms);
  now_ms_ = now_ms;
  for (const WorkerIndex index : restarted_) {
    if (detail(index).restart_clock) lane(index).running_since_ms = now_ms;
    detail(index).restart_clock = false;
  }
  restarted_.clear();
}

bool WorkerLanes::holds(const LaneShare& share) {
  return present(share.worker) && detail(share.worker).generation == share.generation;
}

void WorkerLanes::take(LaneShare& share) {
  Lane& to = lane(share.worker);
  Detail& of = detail(share.worker);
  share.generation = of.generation;
  if (share.prompt_tokens > 0) {
    if (of.prompts_ms.empty()) {
      to.running_since_ms = now_ms_;
      to.running_ms = share.prompt_ms;
      of.restart_clock = false;
    }
    of.prompts_ms.push_back(share.prompt_ms);
    ++to.prefills;
    of.prefill_us.add(static_cast<int64_t>(share.prompt_ms * 1e3));
    of.prefill_tokens.add(share.prompt_tokens);
  }
  of.kv_tokens.add(share.kv_tokens);
  of.context_tokens.add(share.context_tokens);
  of.slots_busy.add(share.slots);
  refresh(share.worker);
}

void WorkerLanes::end_prompt(const LaneShare& share) {
  if (!holds(share) || share.prompt_tokens <= 0) return;
  Lane& to = lane(share.worker);
  Detail& of = detail(share.worker);
  const auto it = std::ranges::find(of.prompts_ms, share.prompt_ms);
  if (it != of.prompts_ms.end()) of.prompts_ms.erase(it);
  --to.prefills;
  of.prefill_us.add(-static_cast<int64_t>(share.prompt_ms * 1e3));
  of.prefill_tokens.add(-share.prompt_tokens);
  to.running_ms = of.prompts_ms.empty() ? 0 : of.prompts_ms.front();
  to.running_since_ms = now_ms_;
  of.restart_clock = true;
  restarted_.push_back(share.worker);
  refresh(share.worker);
}

void WorkerLanes::release(const LaneShare& share) {
  if (!holds(share)) return;
  Detail& of = detail(share.worker);
  of.kv_tokens.add(-share.kv_tokens);
  of.context_tokens.add(-share.context_tokens);
  of.slots_busy.add(-share.slots);
  refresh(share.worker);
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
  for (WorkerIndex i = 0; i < static_cast<int>(lanes_.size()); ++i) {
    if (!present(i)) continue;
    const CostParameters& p = model(i).parameters();
    const double from[] = {p.prefill_base_ms, p.prefill_per_token_us,   p.prefill_per_token2_us,
                           p.decode.base_ms,  p.decode.per_sequence_ms, p.decode.per_context_us};
    for (size_t k = 0; k < std::size(from); ++k) *to[k] += from[k];
    capacity += static_cast<double>(at(i).kv_capacity);
    ++count;
  }
  if (count == 0) return typical_ = prior_;
  for (double* value : to) *value /= count;
  sum.kv_tokens_capacity = std::max<int64_t>(1, static_cast<int64_t>(capacity / count));
  return typical_ = sum;
}

}  // namespace tandem::scheduler

#include "scheduler/placement.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "scheduler/profiles.h"

namespace tandem::scheduler {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A prefill worker is bound ahead by one prompt beside the one that runs, or by this much work.
constexpr int kPromptsAhead = 2;
constexpr double kWorkAheadMs = 20;
constexpr int kPromptsPerSlot = 2;  // Never more than this many times its slots
// A coupled worker is bound ahead by what fits this many steps.
constexpr double kStepsAhead = 4;
// Stand-ins for lost prefill workers run this many prompts at once.
constexpr int kFallbackPrompts = 1;

// A decode step is kept within this part of the time per token; beside prompts, of this part.
constexpr double kStepFull = 0.95;
constexpr double kStepFullCoupled = 0.80;
// Batches below this are not held back: a target that a few sequences miss is met by none.
constexpr int kHoldBatchMin = 4;
// lambda: what a decode worker at its limit costs, as a part of the TTFT target.
constexpr double kPressureWeight = 0.2;
// A target that is missed outweighs every difference in time.
constexpr double kMissMs = 1e6;

// Rules of the local path (scheduling.md 2.3): (b) where the best remote TTFT is this part of the
// target, (c) where the hand-over takes this part of the time per token.
constexpr double kRemoteTight = 0.8;
constexpr double kHandoverPart = 0.5;
constexpr double kStepMargin = 0.9;  // tau
// What a session's last decode worker is worth, unless its load says otherwise.
constexpr double kSessionPressure = 0.15;
constexpr double kLinkYield = 0.8;
constexpr double kLinkLatencyMs = 0.2;

bool contains(const std::vector<WorkerIndex>& list, WorkerIndex index) {
  return std::ranges::find(list, index) != list.end();
}

// When idle.
bool could_hold(const Asked& asked, const Lane& lane) {
  return lane.decodes() && asked.kv_tokens_full <= lane.kv_capacity &&
         asked.request->choices <= lane.slots;
}

}  // namespace

struct Placement::Scan {
  Shortlist prefill;  // Those that take a prompt now
  Shortlist decode;
  Shortlist together;
  double prefill_ttft_ms = kNever;  // Of the best, whether it takes one now or not
  bool possible = false;            // Some worker could hold the request when idle
  bool decode_full = false;         // Some had no room, or no time, for one more
  bool avoid_prefill = false;       // There are others than those to avoid
  bool avoid_decode = false;
};

Placement::Placement(const Config& config, const WorkerLanes& lanes)
    : lanes_(lanes),
      block_tokens_(config.scheduler.prefix_block_tokens),
      bytes_per_ms_(kLinkYield * static_cast<double>(config.scheduler.handover_bytes_per_second) /
                    1e3),
      kv_bytes_per_token_([&] {
        const auto profile = find_profile(config.scheduler.profile, config.sim);
        return static_cast<double>(profile ? profile->costs.kv_bytes_per_token
                                           : config.sim.kv_bytes_per_token);
      }()),
      layers_(std::max(1, config.sim.layers)) {}

void Placement::Shortlist::offer(const Option& option) {
  if (size == kBest && option.cost >= best[kBest - 1].cost) return;
  int at = size < kBest ? size++ : kBest - 1;
  for (; at > 0 && option.cost < best[static_cast<size_t>(at - 1)].cost; --at)
    best[static_cast<size_t>(at)] = best[static_cast<size_t>(at - 1)];
  best[static_cast<size_t>(at)] = option;
}

// Layers travel while the next are computed: what is left at the end is the last layer, and what
// the link was too slow for. x: a layer's transfer, c: its computation.
double Placement::handover_ms(double prompt_tokens, double prompt_ms) const {
  const double x = prompt_tokens * kv_bytes_per_token_ / layers_ / bytes_per_ms_ + kLinkLatencyMs;
  const double c = prompt_ms / layers_;
  return x + (layers_ - 1) * std::max(0.0, x - kLinkLatencyMs - c);
}

int Placement::cached_on(const Asked& asked, WorkerIndex worker) const {
  for (const PrefixMatch& match : asked.cached)
    if (match.worker == worker)
      return static_cast<int>(std::min<int64_t>(static_cast<int64_t>(match.blocks) * block_tokens_,
                                                asked.request->prompt_tokens - 1));
  return 0;
}

int Placement::uncached_on(const Asked& asked, WorkerIndex worker) const {
  const Request& request = *asked.request;
  const int known = lanes_.at(worker).role == Role::kPrefill ? request.cached_tokens : 0;
  const int cached = asked.cached.empty() ? known : std::max(known, cached_on(asked, worker));
  return std::max(1, request.prompt_tokens - cached);
}

void Placement::scan_prefill(const Asked& asked, Scan& scan) const {
  const Request& request = *asked.request;
  const std::vector<WorkerIndex>& all = lanes_.prefillers();
  const double now = lanes_.now_ms();
  const size_t first = static_cast<size_t>(turn_) % std::max<size_t>(1, all.size());
  for (size_t step = 0; step < all.size(); ++step) {
    const size_t at = first + step;
    const WorkerIndex index = all[at < all.size() ? at : at - all.size()];
    const Lane& lane = lanes_.at(index);
    if (scan.avoid_prefill && contains(request.avoid, index)) continue;
    const int uncached = uncached_on(asked, index);
    const double waiting = lane.waiting_ms(now);
    const double ttft = waiting + lane.prefill_ms(request.prompt_tokens - uncached, uncached);
    scan.prefill_ttft_ms = std::min(scan.prefill_ttft_ms, ttft);
    const bool takes = (lane.prefills < kPromptsAhead || waiting < kWorkAheadMs) &&
                       lane.prefills < std::max(1, lane.slots) * kPromptsPerSlot;
    if (takes) scan.prefill.offer({.worker = index, .cost = ttft, .ttft_ms = ttft});
  }
}

void Placement::offer_decode(const Asked& asked, WorkerIndex index, Scan& scan) const {
  const Lane& lane = lanes_.at(index);
  const Request& request = *asked.request;
  if (lane.slots_free < request.choices || lane.kv_free < asked.kv_tokens) {
    scan.decode_full = true;
    return;
  }
  const double context = static_cast<double>(asked.kv_tokens);
  const double step =
      lane.step_ms + lane.step_per_sequence_ms * request.choices + lane.step_per_token_ms * context;
  const double full = (lane.role == Role::kDecode ? kStepFull : kStepFullCoupled) * asked.tpot_ms;
  if (asked.hold && lane.batch >= kHoldBatchMin && step > full) {
    scan.decode_full = true;
    return;
  }
  const double kv = 1 - static_cast<double>(lane.kv_free - asked.kv_tokens) * lane.kv_share;
  const double slots = 1 - (lane.slots_free - request.choices) * lane.slot_share;
  const double fullness = std::max({kv, slots, step / full});
  double pressure = fullness * fullness;
  if (index == asked.session) pressure -= kSessionPressure;
  const Option option{.worker = index, .cost = pressure, .step_ms = step, .pressure = pressure};
  if (lane.role == Role::kDecode)
    scan.decode.offer(option);
  else
    scan.together.offer(local_option(asked, option));
}

void Placement::scan_decode(const Asked& asked, Scan& scan) const {
  const Request& request = *asked.request;
  const std::vector<WorkerIndex>& all = lanes_.decoders();
  const size_t first = static_cast<size_t>(turn_) % std::max<size_t>(1, all.size());
  for (size_t step = 0; step < all.size(); ++step) {
    const size_t at = first + step;
    const WorkerIndex index = all[at < all.size() ? at : at - all.size()];
    const Lane& lane = lanes_.at(index);
    if (!could_hold(asked, lane)) continue;
    scan.possible = true;
    if (scan.avoid_decode && contains(request.avoid, index)) continue;
    offer_decode(asked, index, scan);
  }
}

// The same worker computes the prompt beside its decoding: TTFT, and whether it takes one now
// (infinite cost: not).
Placement::Option Placement::local_option(const Asked& asked, const Option& decode) const {
  const Lane& lane = lanes_.at(decode.worker);
  const Request& request = *asked.request;
  const int uncached = uncached_on(asked, decode.worker);
  Option option = decode;
  const double alone = lane.prefill_ms(request.prompt_tokens - uncached, uncached);
  if (lane.batch == 0) {
    option.ttft_ms = lane.waiting_ms(lanes_.now_ms()) + alone;
  } else {
    const double steps = std::ceil(static_cast<double>(lane.local_tokens + uncached) /
                                   std::max(1.0, lane.local_tokens_per_step));
    option.ttft_ms = std::max(alone, steps * kStepMargin * asked.tpot_ms);
  }
  const bool takes = lane.prefills == 0 || static_cast<double>(lane.local_tokens) <
                                               kStepsAhead * lane.local_tokens_per_step;
  option.cost = takes && lane.prefills < std::max(1, lane.slots)
                    ? option.ttft_ms + kPressureWeight * asked.ttft_ms * decode.pressure +
                          penalty(asked, option.ttft_ms, option.step_ms)
                    : kNever;
  return option;
}

double Placement::penalty(const Asked& asked, double ttft_ms, double tpot_ms) const {
  return (asked.waited_ms + ttft_ms > asked.ttft_ms ? kMissMs : 0) +
         (tpot_ms > asked.tpot_ms ? kMissMs : 0);
}

Placed Placement::local(const Asked& asked, const Option& option, std::string_view reason) const {
  const int uncached = uncached_on(asked, option.worker);
  return {
      .kind = Placed::Kind::kPlaced,
      .path = Path::kLocal,
      .decode = option.worker,
      .reason = reason,
      .ttft_ms = option.ttft_ms,
      .tpot_ms = option.step_ms,
      .prompt_ms =
          lanes_.at(option.worker).prefill_ms(asked.request->prompt_tokens - uncached, uncached),
      .prompt_tokens = uncached};
}

Placed Placement::place_pair(const Asked& asked, const Scan& scan) const {
  const Request& request = *asked.request;
  Placed best;
  double least = kNever;
  for (int i = 0; i < scan.prefill.size; ++i) {
    const Option& p = scan.prefill.best[static_cast<size_t>(i)];
    const int uncached = uncached_on(asked, p.worker);
    const double prompt_ms =
        lanes_.at(p.worker).prefill_ms(request.prompt_tokens - uncached, uncached);
    const double handover = handover_ms(request.prompt_tokens, prompt_ms);
    for (int j = 0; j < scan.decode.size; ++j) {
      const Option& d = scan.decode.best[static_cast<size_t>(j)];
      const double tpot = d.step_ms + handover / std::max(1, asked.output_tokens - 1);
      const double score = p.ttft_ms + kPressureWeight * asked.ttft_ms * d.pressure +
                           penalty(asked, p.ttft_ms, tpot);
      if (score >= least) continue;
      least = score;
      best = {.kind = Placed::Kind::kPlaced,
              .path = Path::kRemote,
              .prefill = p.worker,
              .decode = d.worker,
              .reason = "backlog",
              .ttft_ms = p.ttft_ms,
              .tpot_ms = tpot,
              .prompt_ms = prompt_ms,
              .prompt_tokens = uncached};
    }
  }
  return best;
}

// Prompts on a pure decode worker: where they cost its streams nothing, where the prefill workers
// are too late, or where the hand-over would break the time per token.
Placed Placement::place_local(const Asked& asked, const Scan& scan, double remote_ttft_ms) const {
  Placed best;
  double least = kNever;
  for (int i = 0; i < scan.decode.size; ++i) {
    const Option& decode = scan.decode.best[static_cast<size_t>(i)];
    const Lane& lane = lanes_.at(decode.worker);
    if (lanes_.model(decode.worker).samples() == 0 && !lanes_.trusted()) continue;
    const Option option = local_option(asked, decode);
    const int uncached = uncached_on(asked, decode.worker);
    const double handover =
        handover_ms(asked.request->prompt_tokens,
                    lane.prefill_ms(asked.request->prompt_tokens - uncached, uncached));
    const bool fits_step =
        static_cast<double>(lane.local_tokens + uncached) <= lane.local_tokens_per_step;
    const bool faster = remote_ttft_ms > kRemoteTight * asked.ttft_ms - asked.waited_ms &&
                        option.ttft_ms < std::min(asked.ttft_ms, remote_ttft_ms);
    const bool saves_handover =
        handover / std::max(1, asked.output_tokens - 1) > kHandoverPart * asked.tpot_ms;
    if (!(fits_step || faster || saves_handover) || option.cost >= least) continue;
    least = option.cost;
    best = local(asked, option,
                 fits_step ? "local_small"
                 : faster  ? "local_faster"
                           : "local_handover");
  }
  return best;
}

Placed Placement::choose(const Asked& asked) {
  const Request& request = *asked.request;
  const bool prefill_side =
      lanes_.usable_prefill() > 0 || (request.prefill_only && lanes_.usable_coupled() > 0);
  const bool decode_side = lanes_.usable_decode() > 0;
  if (!decode_side && !(request.prefill_only && prefill_side))
    return {.kind = prefill_side || lanes_.usable_prefill() > 0 ? Placed::Kind::kNoDecodeWorker
                                                                : Placed::Kind::kNoWorker};
  Scan scan;
  if (!request.avoid.empty()) {
    const auto& all = lanes_.all();
    for (WorkerIndex i = 0; i < static_cast<int>(all.size()); ++i) {
      if (contains(request.avoid, i)) continue;
      scan.avoid_prefill |= all[static_cast<size_t>(i)].prefills_for_others();
      scan.avoid_decode |= could_hold(asked, all[static_cast<size_t>(i)]);
    }
  }
  ++turn_;
  if (lanes_.usable_prefill() > 0) scan_prefill(asked, scan);
  if (request.prefill_only && lanes_.usable_prefill() > 0) {
    if (scan.prefill.size == 0) return {.kind = Placed::Kind::kWaitPrefill};
    const Option& p = scan.prefill.best[0];
    const int uncached = uncached_on(asked, p.worker);
    return {.kind = Placed::Kind::kPlaced,
            .path = Path::kPrefillOnly,
            .prefill = p.worker,
            .reason = "backlog",
            .ttft_ms = p.ttft_ms,
            .prompt_ms = lanes_.at(p.worker).prefill_ms(request.prompt_tokens - uncached, uncached),
            .prompt_tokens = uncached};
  }
  scan_decode(asked, scan);
  if (!scan.possible) return {.kind = Placed::Kind::kTooLarge};
  if (scan.decode.size == 0 && scan.together.size == 0) return {.kind = Placed::Kind::kWaitDecode};

  if (lanes_.usable_prefill() == 0 && lanes_.usable_coupled() == 0) {
    for (int i = 0; i < scan.decode.size; ++i) {
      const Option& decode = scan.decode.best[static_cast<size_t>(i)];
      if (lanes_.at(decode.worker).prefills >= kFallbackPrompts) continue;
      Placed placed = local(asked, local_option(asked, decode), "no_prefill");
      placed.fallback = true;
      return placed;
    }
    return {.kind = Placed::Kind::kWaitPrefill};
  }
  Placed best = place_pair(asked, scan);
  const auto score = [&](const Placed& placed) {
    if (placed.kind != Placed::Kind::kPlaced) return kNever;
    return placed.ttft_ms + penalty(asked, placed.ttft_ms, placed.tpot_ms);
  };
  const Placed beside = place_local(asked, scan, scan.prefill_ttft_ms);
  if (beside.kind == Placed::Kind::kPlaced &&
      (beside.reason == "local_small" || score(beside) < score(best)))
    best = beside;
  if (scan.together.size > 0 && scan.together.best[0].cost < kNever) {
    const Placed coupled = local(asked, scan.together.best[0], "coupled");
    if (score(coupled) < score(best)) best = coupled;
  }
  return best;
}

}  // namespace tandem::scheduler

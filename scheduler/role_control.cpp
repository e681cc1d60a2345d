#include "scheduler/role_control.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace tandem::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr double kRequestsMin = 12;  // Before any move
constexpr double kEndedMin = 4;
constexpr double kBurstMax = 50;  // Squared variation of gaps that is believed; at least Poisson's
// A move must promise this much more; changing between separate and coupled, which reorders the
// whole pool, this much.
constexpr double kGainMin = 0.05;
constexpr double kGainCoupledMin = 0.05;
// Coupled workers must carry this part of what separate ones do.
constexpr double kCoupledPart = 1 / 1.08;
constexpr int kSplitsTried = 128;  // Of large pools, evenly spread
// From here on the dwell shrinks to kUrgentDwell: the load runs away meanwhile.
constexpr double kGainUrgent = 0.25;
constexpr Duration kUrgentDwell = 500ms;
constexpr Duration kDwellAfterFailure = 5s;
// A move that has not shown after this long is taken for lost.
constexpr Duration kPendingMax = 60s;
// Draining must be paid back within this time.
constexpr double kPaybackSeconds = 30;
// A worker that has just moved is left alone while there are others.
constexpr Duration kWorkerRest = 60s;

}  // namespace

void LoadAverages::decay(double& count, std::initializer_list<double*> sums, double seconds) const {
  if (count <= memory_requests_ || seconds <= 0) return;
  const double keep = std::max(std::exp(-seconds / memory_seconds_), memory_requests_ / count);
  count *= keep;
  for (double* sum : sums) *sum *= keep;
}

void LoadAverages::arrived(const Arrival& a, TimePoint now) {
  if (begin_ == TimePoint{}) begin_ = last_arrival_ = now;
  const double seconds = std::max(0.0, to_seconds(now - last_arrival_));
  last_arrival_ = now;
  decay(count_, {&prompt_, &uncached_, &prefill_, &prefill2_, &predicted_, &gaps_, &gaps2_},
        seconds);
  gaps_ += seconds;
  gaps2_ += seconds * seconds;
  rate_ = rate_ * std::exp(-seconds / memory_seconds_) + 1 / memory_seconds_;
  count_ += 1;
  prompt_ += a.prompt_tokens;
  uncached_ += a.uncached_tokens;
  prefill_ += a.prefill_ms;
  prefill2_ += a.prefill_ms * a.prefill_ms;
  predicted_ += a.predicted_output_tokens;
  prefill_times_.add(a.prefill_ms);
}

void LoadAverages::ended(int output_tokens) {
  if (output_tokens <= 0) return;
  ended_ += 1;
  ended_tokens_ += output_tokens;
}

void LoadAverages::decoding(double sequences, double step_ms, TimePoint now) {
  const double seconds =
      last_decode_ == TimePoint{} ? 0 : std::clamp(to_seconds(now - last_decode_), 0.0, 5.0);
  last_decode_ = now;
  decay(ended_, {&tokens_, &ended_tokens_}, seconds);
  if (step_ms > 0 && sequences > 0) tokens_ += sequences * seconds * 1e3 / step_ms;
}

double LoadAverages::per_second(TimePoint now) const {
  const double seconds = std::max(0.0, to_seconds(now - last_arrival_));
  const double seen = std::max(0.5, to_seconds(now - begin_));
  // The sum has not filled up yet in the beginning.
  return rate_ * std::exp(-seconds / memory_seconds_) / (1 - std::exp(-seen / memory_seconds_));
}

std::optional<LoadShape> LoadAverages::shape() const {
  if (count_ < kRequestsMin) return std::nullopt;
  LoadShape shape;
  shape.prompt_tokens = prompt_ / count_;
  shape.uncached_tokens = uncached_ / count_;
  shape.prefill_ms = std::max(1e-3, prefill_ / count_);
  shape.prefill_ms_p90 = prefill_times_.quantile(0.9, shape.prefill_ms);
  shape.prefill_cv2 = std::max(0.0, prefill2_ / count_ / (shape.prefill_ms * shape.prefill_ms) - 1);
  const double gap = gaps_ / count_;
  if (gap > 0) shape.arrival_cv2 = std::clamp(gaps2_ / count_ / (gap * gap) - 1, 1.0, kBurstMax);
  // Tokens generated per answer that ended is the mean length of answers, long ones that still run
  // included. Few ends: what was predicted stands in.
  const double predicted = predicted_ / count_;
  shape.output_tokens = ended_ < kEndedMin ? predicted
                                           : std::max(ended_tokens_ / ended_,
                                                      std::min(tokens_ / ended_, 4 * predicted));
  shape.output_tokens = std::max(1.0, shape.output_tokens);
  return shape;
}

RoleControl::RoleControl(const RatioConfig& ratio, const Targets& targets)
    : ratio_(ratio), targets_(targets) {}

double RoleControl::capacity(const Roles& roles, const LoadShape& shape,
                             const RoleView& view) const {
  const double decode = decode_point(view.costs, shape, targets_, view.slots).per_second;
  double sum = std::min(prefill_per_second(shape, targets_, roles.prefill), roles.decode * decode);
  if (roles.coupled > 0)
    sum += coupled_per_second(view.costs, shape, targets_, view.slots, roles.coupled);
  return sum;
}

bool RoleControl::allowed(const Roles& roles) const {
  const auto within = [](int count, int min, int max) {
    return count >= min && (max == 0 || count <= max);
  };
  const bool serves = roles.coupled > 0 || (roles.prefill > 0 && roles.decode > 0);
  return serves && within(roles.prefill, ratio_.prefill_min, ratio_.prefill_max) &&
         within(roles.decode, ratio_.decode_min, ratio_.decode_max) &&
         (roles.prefill == 0 || roles.decode > 0);
}

Roles RoleControl::best_separate(int workers, const LoadShape& shape, const RoleView& view) const {
  Roles best;
  double most = -1;
  const int stride = std::max(1, workers / kSplitsTried);
  for (int prefill = 1; prefill < workers; prefill += stride) {
    const Roles roles{prefill, workers - prefill, 0};
    const double carries = capacity(roles, shape, view);
    if (!allowed(roles) || carries <= most * (1 + 1e-9)) continue;
    most = carries;
    best = roles;
  }
  return best;
}

// What separate workers carry at a split between whole numbers: decode workers take prompts that
// prefill workers are late with, so that a split that does not quite fit costs little.
double RoleControl::apart(int workers, const LoadShape& shape, const RoleView& view) const {
  const double decode = decode_point(view.costs, shape, targets_, view.slots).per_second;
  double low = std::max(0.5, 1.0 * ratio_.prefill_min);
  double high = workers - std::max(0.5, 1.0 * ratio_.decode_min);
  if (ratio_.prefill_max > 0) high = std::min(high, 1.0 * ratio_.prefill_max);
  if (ratio_.decode_max > 0) low = std::max(low, 1.0 * workers - ratio_.decode_max);
  for (int i = 0; i < 20 && low < high; ++i) {
    const double middle = (low + high) / 2;
    const bool starved = prefill_per_second(shape, targets_, middle) < (workers - middle) * decode;
    (starved ? low : high) = middle;
  }
  return std::min(prefill_per_second(shape, targets_, high), (workers - low) * decode);
}

// Where separation is better all workers but the bounds' are separate, else coupled: the sum is
// linear between the two.
Roles RoleControl::best(const Roles& now, const LoadShape& shape, const LoadShape& lasting,
                        const RoleView& view) const {
  const int workers = now.total();
  const Roles separate = best_separate(workers, shape, view);
  if (ratio_.coupled != "allow") return separate;
  const int prefill = ratio_.prefill_min;
  const int decode_kept = std::max(ratio_.decode_min, prefill > 0 ? 1 : 0);
  const Roles together{prefill, decode_kept, workers - prefill - decode_kept};
  if (together.coupled <= 0 || !allowed(together)) return separate;
  // What the pool is, or is on its way to, must be beaten clearly. Between equals coupled workers
  // win: none idles while others are late, and a change of the load moves nobody.
  const bool stay = together_.value_or(2 * now.coupled > workers);
  const double bar = kCoupledPart * (stay ? 1 / (1 + kGainCoupledMin) : 1 + kGainCoupledMin);
  return capacity({0, 0, workers}, lasting, view) > apart(workers, lasting, view) * bar ? together
                                                                                        : separate;
}

WorkerIndex RoleControl::pick(Role from, const RoleView& view, TimePoint now) const {
  WorkerIndex chosen = -1;
  std::pair<bool, double> least{true, 0};
  for (const RoleWorker& worker : view.workers) {
    if (!worker.usable || worker.role != from) continue;
    const auto moved = moved_.find(worker.worker);
    const bool rests = moved != moved_.end() && now - moved->second < kWorkerRest;
    const std::pair<bool, double> rank{rests, worker.drain_ms};
    if (chosen >= 0 && !(rank < least)) continue;
    chosen = worker.worker;
    least = rank;
  }
  return chosen;
}

std::optional<RoleMove> RoleControl::step(const RoleView& view, TimePoint now) {
  Roles roles;
  for (const RoleWorker& worker : view.workers) {
    if (worker.worker == pending_ && worker.role == pending_role_ && worker.usable) pending_ = -1;
    if (!worker.usable) continue;
    if (worker.role == Role::kPrefill) ++roles.prefill;
    if (worker.role == Role::kDecode) ++roles.decode;
    if (worker.role == Role::kCoupled) ++roles.coupled;
  }
  if (pending_ >= 0 && (now - pending_since_ > kPendingMax || now < pending_since_)) pending_ = -1;
  const auto shape = load_.shape();
  if (!shape || roles.total() == 0) return std::nullopt;
  const double demand = load_.per_second(now);
  recommend(*shape, view, demand);
  if (ratio_.mode != "auto" || pending_ >= 0 || roles.total() < 2) return std::nullopt;
  if (next_move_ > now + ratio_.dwell + kPendingMax) next_move_ = now;  // The clock jumped back

  const LoadShape lasting = load_.long_shape().value_or(*shape);
  const Roles target = best(roles, *shape, lasting, view);
  if (target == roles || target.total() == 0) return std::nullopt;
  // Splits are judged by the load of the moment, coupling by what lasts.
  const LoadShape& judged = target.coupled > 0 || roles.coupled > 0 ? lasting : *shape;
  const double have = capacity(roles, judged, view);
  const double gain = capacity(target, judged, view) / std::max(1e-9, have) - 1;
  const bool reorders = (target.coupled > 0) != (roles.coupled > 0);
  const bool mixed = roles.coupled > 0 && roles.prefill + roles.decode > 0;  // On its way already
  // best() has judged coupling already; half-way the rest follows: a lone pair beside coupled
  // workers serves nobody well.
  if (gain <= kGainMin && !reorders && !mixed && allowed(roles)) return std::nullopt;
  const bool runs_away = view.backlog_ms > targets_.ttft_ms || view.waiting_for_decode > 0;
  const bool urgent = gain > kGainUrgent && (runs_away || mixed || demand > have);
  if (now < pause_until_ && pause_until_ <= now + kDwellAfterFailure) return std::nullopt;
  if (now < next_move_ && !(urgent && now >= next_move_ - ratio_.dwell + kUrgentDwell))
    return std::nullopt;
  auto move = toward(roles, target, judged, view, now, demand, urgent);
  if (move) together_ = 2 * target.coupled > target.total();
  return move;
}

std::optional<RoleMove> RoleControl::toward(const Roles& roles, const Roles& target,
                                            const LoadShape& shape, const RoleView& view,
                                            TimePoint now, double demand, bool urgent) {
  constexpr std::array kRoles{Role::kPrefill, Role::kDecode, Role::kCoupled};
  const auto of = [](Roles& set, Role role) -> int& {
    return role == Role::kPrefill ? set.prefill : role == Role::kDecode ? set.decode : set.coupled;
  };
  Roles from_roles = roles, to_roles = target;
  std::optional<RoleMove> chosen;
  double most = -1;
  for (const Role from : kRoles) {
    for (const Role to : kRoles) {
      if (of(from_roles, from) <= of(to_roles, from) || of(from_roles, to) >= of(to_roles, to))
        continue;
      Roles after = roles;
      --of(after, from);
      ++of(after, to);
      if (!allowed(after) && allowed(roles)) continue;
      const double carries = capacity(after, shape, view);
      if (carries <= most) continue;
      const WorkerIndex worker = pick(from, view, now);
      if (worker < 0) continue;
      most = carries;
      chosen = RoleMove{.worker = worker, .to = to};
    }
  }
  if (!chosen) return std::nullopt;
  const double have = capacity(roles, shape, view);
  // What is asked for now must still be carried after the move, unless it is not carried anyway.
  if (!urgent && most < have && most < demand && demand < have) return std::nullopt;
  const auto worker = std::ranges::find(view.workers, chosen->worker, &RoleWorker::worker);
  const double lost = worker->drain_ms / 1e3 / kPaybackSeconds / roles.total();
  const double gain = capacity(target, shape, view) / std::max(1e-9, have) - 1;
  const bool mixed = roles.coupled > 0 && roles.prefill + roles.decode > 0;
  const bool reorders = (target.coupled > 0) != (roles.coupled > 0);
  if (allowed(roles) && !mixed && !reorders && gain <= lost) return std::nullopt;
  chosen->reason =
      fmt::format("{:.2f} requests/s with {}:{}:{} (prefill:decode:coupled), {:.2f} with {}:{}:{}",
                  have, roles.prefill, roles.decode, roles.coupled, capacity(target, shape, view),
                  target.prefill, target.decode, target.coupled);
  pending_ = chosen->worker;
  pending_role_ = chosen->to;
  pending_since_ = now;
  next_move_ = now + ratio_.dwell;
  moved_[chosen->worker] = now;
  return chosen;
}

void RoleControl::failed(WorkerIndex worker, TimePoint now) {
  if (pending_ != worker) return;
  pending_ = -1;
  pause_until_ = now + kDwellAfterFailure;
}

void RoleControl::left(WorkerIndex worker) {
  if (pending_ == worker) pending_ = -1;
  moved_.erase(worker);
}

void RoleControl::recommend(const LoadShape& shape, const RoleView& view, double demand) {
  const DecodePoint point = decode_point(view.costs, shape, targets_, view.slots);
  int prefill = 1;
  while (prefill < 10'000 && prefill_per_second(shape, targets_, prefill) < demand) {
    const double each = prefill_per_second(shape, targets_, prefill) / prefill;
    prefill = std::max(prefill + 1, static_cast<int>(demand / std::max(1e-9, each) * 0.9));
  }
  const int decode = std::max(1, static_cast<int>(std::ceil(demand / point.per_second)));
  recommendation_ = {
      .prefill = prefill,
      .decode = decode,
      .reason = fmt::format(
          "{:.2f} requests/s of {:.0f} uncached prompt tokens ({:.0f} ms) and {:.0f} output "
          "tokens; "
          "a decode worker carries {:.2f}/s in batches of {:.0f}{}",
          demand, shape.uncached_tokens, shape.prefill_ms, shape.output_tokens, point.per_second,
          point.batch,
          point.possible ? ""
                         : fmt::format("; the TPOT target is impossible: one sequence takes {:.1f} "
                                       "ms, {:.1f} allowed",
                                       point.step_ms, targets_.tpot_ms))};
}

}  // namespace tandem::scheduler

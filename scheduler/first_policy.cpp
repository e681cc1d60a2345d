// The policies to compare with: first come first served, the prefill worker with the smallest
// predicted backlog, the decode worker that stays emptiest. A request is bound to workers as late
// as possible: it waits here, where it can still go anywhere, until a decode worker has promised
// its KV and slots and a prefill worker is about to be idle.
#include "scheduler/policies.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "scheduler/worker_table.h"

namespace tandem::scheduler {
namespace {

// Prompts that a prefill worker holds, running and next, as a multiple of its slots. More would
// bind requests to workers before it is known which one is free first.
constexpr int kPrefillDepth = 2;
// A decode worker that stands in for lost prefill workers runs this many prompts at once, so that
// the fallback cannot smother the streams that run there.
constexpr int kLocalFallbackMax = 1;
// What a client without any worker to serve it is told to wait: a lost worker is dialled again by
// then.
constexpr double kReconnectSeconds = 2;
constexpr double kRetryAfterMin = 1;
constexpr double kRetryAfterMax = 60;

struct Queued {
  Ticket ticket = 0;
  Request request;
  TimePoint expires{};
  bool waited_for_credits = false;
};

struct Dispatched {
  WorkerIndex prefill = -1;
  WorkerIndex decode = -1;
  uint64_t prefill_generation = 0;
  uint64_t decode_generation = 0;
  int64_t prompt_tokens = 0;  // Uncached
  bool prompt_running = true;
  bool fallback = false;
  DecodeShare share;
};

class FirstPolicy final : public Scheduler {
 public:
  explicit FirstPolicy(const Config& config)
      : limits_(config.scheduler),
        context_(config.model.context),
        round_robin_(config.scheduler.policy == "round_robin") {}

  void worker_joined(WorkerIndex worker, const WorkerState& state) override {
    workers_.join(worker, state);
  }
  void worker_updated(WorkerIndex worker, const WorkerState& state) override {
    workers_.update(worker, state);
  }
  void worker_left(WorkerIndex worker) override { workers_.leave(worker); }

  void submit(Ticket ticket, const Request& request, TimePoint now) override;
  void withdraw(Ticket ticket) override;
  std::vector<Decision> poll(TimePoint now) override;
  TimePoint next_wakeup() const override;
  void prefill_finished(Ticket ticket) override;
  void finished(Ticket ticket, int output_tokens) override;
  double retry_after_seconds(TimePoint) const override { return retry_after(); }
  int queued() const override { return static_cast<int>(queue_.size()); }
  int dispatched() const override { return static_cast<int>(dispatched_.size()); }

 private:
  // Lower priority values first, then order of arrival.
  using Place = std::pair<int, uint64_t>;
  using Queue = std::map<Place, Queued>;

  enum class Outcome { kPlaced, kWait };

  DecodeShare share_of(const Request& request) const;
  bool usable(const Worker& worker, bool prefill_side) const;
  bool any_usable(bool prefill_side) const;
  template <class Eligible>
  bool avoidable(const Request& request, Eligible eligible) const;
  WorkerIndex choose_prefill(const Request& request);
  WorkerIndex choose_decode(const Request& request, const DecodeShare& share, bool fallback);
  Outcome place(Queued& queued, Decision& decision);
  void dispatch(Queued& queued, Decision& decision, bool fallback);
  Decision refuse(const Queued& queued, ErrorCode code, std::string reason) const;
  double retry_after() const;
  void erase(Queue::iterator it);
  void end_prompt(Dispatched& entry);

  const SchedulerConfig limits_;
  const int context_;
  const bool round_robin_;
  WorkerTable workers_;
  Queue queue_;
  std::unordered_map<Ticket, Place> places_;
  std::set<std::pair<TimePoint, Place>> expiries_;
  std::vector<Decision> refused_;  // At submit; handed out by the next poll()
  std::unordered_map<Ticket, Dispatched> dispatched_;
  int64_t queued_prompt_tokens_ = 0;
  int64_t queued_output_tokens_ = 0;
  uint64_t arrivals_ = 0;
  // Where the next search begins: breaks ties, and is all there is to round_robin.
  int prefill_turn_ = 0;
  int decode_turn_ = 0;
};

int64_t uncached(const Request& request) {
  return std::max(1, request.prompt_tokens - request.cached_tokens);
}
int64_t output_tokens(const Request& request) {
  return static_cast<int64_t>(request.max_tokens) * request.choices;
}
bool contains(const std::vector<WorkerIndex>& list, WorkerIndex index) {
  return std::find(list.begin(), list.end(), index) != list.end();
}

DecodeShare FirstPolicy::share_of(const Request& request) const {
  const int64_t tokens =
      std::min<int64_t>(context_, static_cast<int64_t>(request.prompt_tokens) + request.max_tokens);
  return DecodeShare{.kv_tokens = tokens * request.choices, .slots = request.choices};
}

bool FirstPolicy::usable(const Worker& worker, bool prefill_side) const {
  return worker.present && worker.state.accepting &&
         (prefill_side ? serves_prefill(worker.state.role) : serves_decode(worker.state.role));
}

bool FirstPolicy::any_usable(bool prefill_side) const {
  for (WorkerIndex index = 0; index < workers_.size(); ++index)
    if (usable(workers_.at(index), prefill_side)) return true;
  return false;
}

// Avoiding is a preference: where only avoided workers are left, another attempt there is better
// than none.
template <class Eligible>
bool FirstPolicy::avoidable(const Request& request, Eligible eligible) const {
  if (request.avoid.empty()) return false;
  for (WorkerIndex index = 0; index < workers_.size(); ++index)
    if (eligible(workers_.at(index)) && !contains(request.avoid, index)) return true;
  return false;
}

void FirstPolicy::submit(Ticket ticket, const Request& request, TimePoint now) {
  TANDEM_CHECK(!places_.contains(ticket) && !dispatched_.contains(ticket), "ticket used twice");
  Queued queued{.ticket = ticket, .request = request, .expires = now + limits_.queue_deadline};
  if (request.deadline != TimePoint{}) queued.expires = std::min(queued.expires, request.deadline);
  if (this->queued() >= limits_.queue_max) {
    refused_.push_back(refuse(queued, ErrorCode::kResourceExhausted, "queue_full"));
    return;
  }
  const Place place{request.priority, arrivals_++};
  places_.emplace(ticket, place);
  expiries_.emplace(queued.expires, place);
  queued_prompt_tokens_ += uncached(request);
  queued_output_tokens_ += output_tokens(request);
  queue_.emplace(place, std::move(queued));
}

void FirstPolicy::withdraw(Ticket ticket) {
  if (const auto it = places_.find(ticket); it != places_.end()) erase(queue_.find(it->second));
  std::erase_if(refused_, [&](const Decision& decision) { return decision.ticket == ticket; });
}

void FirstPolicy::erase(Queue::iterator it) {
  queued_prompt_tokens_ -= uncached(it->second.request);
  queued_output_tokens_ -= output_tokens(it->second.request);
  expiries_.erase({it->second.expires, it->first});
  places_.erase(it->second.ticket);
  queue_.erase(it);
}

std::vector<Decision> FirstPolicy::poll(TimePoint now) {
  std::vector<Decision> decisions = std::move(refused_);
  refused_.clear();
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    const auto it = queue_.find(expiries_.begin()->second);
    const bool own =
        it->second.request.deadline != TimePoint{} && it->second.request.deadline <= now;
    decisions.push_back(
        refuse(it->second, ErrorCode::kDeadlineExceeded, own ? "deadline" : "queue_deadline"));
    erase(it);
  }
  // Strictly in order: a large request at the head is not overtaken until it starves.
  while (!queue_.empty()) {
    Decision decision;
    if (place(queue_.begin()->second, decision) == Outcome::kWait) break;
    decisions.push_back(std::move(decision));
    erase(queue_.begin());
  }
  return decisions;
}

TimePoint FirstPolicy::next_wakeup() const {
  if (!refused_.empty()) return TimePoint::min();
  return expiries_.empty() ? TimePoint::max() : expiries_.begin()->first;
}

FirstPolicy::Outcome FirstPolicy::place(Queued& queued, Decision& decision) {
  const Request& request = queued.request;
  const DecodeShare share = share_of(request);
  const bool prefill_side = any_usable(true);
  const bool decode_side = any_usable(false);
  if (!decode_side && !(request.prefill_only && prefill_side)) {
    decision =
        refuse(queued, ErrorCode::kUnavailable, prefill_side ? "no_decode_worker" : "no_worker");
    return Outcome::kPlaced;
  }
  decision.ticket = queued.ticket;
  if (request.prefill_only && prefill_side) {
    decision.prefill = choose_prefill(request);
    if (decision.prefill < 0) return Outcome::kWait;
    decision.path = Path::kPrefillOnly;
    dispatch(queued, decision, false);
    return Outcome::kPlaced;
  }
  const auto could = [&](const Worker& worker) {
    return usable(worker, false) && worker.could_ever_fit(share);
  };
  bool possible = false;
  for (WorkerIndex i = 0; i < workers_.size() && !possible; ++i) possible = could(workers_.at(i));
  if (!possible) {
    decision = refuse(queued, ErrorCode::kInvalidArgument, "too_large");
    return Outcome::kPlaced;
  }
  decision.decode = choose_decode(request, share, !prefill_side);
  if (decision.decode < 0) {
    queued.waited_for_credits = true;
    return Outcome::kWait;
  }
  const bool coupled = workers_.at(decision.decode).state.role != Role::kDecode;
  if (coupled || !prefill_side) {
    decision.path = Path::kLocal;
    dispatch(queued, decision, !coupled);
    return Outcome::kPlaced;
  }
  decision.prefill = choose_prefill(request);
  if (decision.prefill < 0) return Outcome::kWait;
  decision.path = Path::kRemote;
  dispatch(queued, decision, false);
  return Outcome::kPlaced;
}

WorkerIndex FirstPolicy::choose_prefill(const Request& request) {
  const auto eligible = [&](const Worker& worker) { return usable(worker, true); };
  const bool avoiding = avoidable(request, eligible);
  const int count = workers_.size();
  WorkerIndex best = -1;
  double best_us = std::numeric_limits<double>::max();
  for (int step = 0; step < count; ++step) {
    const WorkerIndex index = (prefill_turn_ + step) % count;
    const Worker& worker = workers_.at(index);
    if (!eligible(worker) || worker.prefills >= std::max(1, worker.state.slots) * kPrefillDepth)
      continue;
    if (avoiding && contains(request.avoid, index)) continue;
    if (round_robin_) return index;
    const double us = static_cast<double>(worker.prefill_tokens.value() + uncached(request)) *
                      workers_.prefill_us_per_token(worker);
    if (us < best_us) {
      best = index;
      best_us = us;
    }
  }
  return best;
}

WorkerIndex FirstPolicy::choose_decode(const Request& request, const DecodeShare& share,
                                       bool fallback) {
  const auto eligible = [&](const Worker& worker) {
    return usable(worker, false) && worker.could_ever_fit(share);
  };
  const bool avoiding = avoidable(request, eligible);
  const int count = workers_.size();
  WorkerIndex best = -1;
  double best_fullness = std::numeric_limits<double>::max();
  for (int step = 0; step < count; ++step) {
    const WorkerIndex index = (decode_turn_ + step) % count;
    const Worker& worker = workers_.at(index);
    if (!eligible(worker) || !worker.fits(share)) continue;
    if (avoiding && contains(request.avoid, index)) continue;
    if (fallback && worker.state.role == Role::kDecode &&
        worker.local_prefills >= kLocalFallbackMax)
      continue;
    if (round_robin_) return index;
    const double fullness = worker.fullness_with(share);
    if (fullness < best_fullness) {
      best = index;
      best_fullness = fullness;
    }
  }
  return best;
}

void FirstPolicy::dispatch(Queued& queued, Decision& decision, bool fallback) {
  Dispatched entry{.prefill = decision.prefill, .decode = decision.decode, .fallback = fallback};
  entry.prompt_tokens = uncached(queued.request);
  Worker& prompt_worker = workers_.at(decision.prefill >= 0 ? decision.prefill : decision.decode);
  decision.predicted_ttft_ms =
      static_cast<double>(prompt_worker.prefill_tokens.value() + entry.prompt_tokens) *
      workers_.prefill_us_per_token(prompt_worker) / 1000.0;
  prompt_worker.prefill_tokens.add(entry.prompt_tokens);
  ++prompt_worker.prefills;
  if (fallback) ++prompt_worker.local_prefills;
  if (decision.prefill >= 0) entry.prefill_generation = prompt_worker.generation;
  if (decision.decode >= 0) {
    Worker& worker = workers_.at(decision.decode);
    entry.share = share_of(queued.request);
    entry.decode_generation = worker.generation;
    worker.kv_tokens.add(entry.share.kv_tokens);
    worker.slots_busy.add(entry.share.slots);
  }
  decision.reason = round_robin_                    ? "round_robin"
                    : fallback                      ? "no_prefill"
                    : decision.path == Path::kLocal ? "coupled"
                    : queued.waited_for_credits     ? "credits"
                                                    : "backlog";
  if (decision.prefill >= 0) prefill_turn_ = decision.prefill + 1;
  if (decision.decode >= 0) decode_turn_ = decision.decode + 1;
  dispatched_.emplace(queued.ticket, std::move(entry));
}

Decision FirstPolicy::refuse(const Queued& queued, ErrorCode code, std::string reason) const {
  Decision decision{.ticket = queued.ticket, .path = Path::kRefuse, .reason = std::move(reason)};
  decision.code = code;
  decision.retry_after_seconds =
      code == ErrorCode::kUnavailable ? kReconnectSeconds : retry_after();
  return decision;
}

// How long what is queued keeps the slower side busy.
double FirstPolicy::retry_after() const {
  const double seconds = std::max(workers_.prefill_drain_seconds(queued_prompt_tokens_),
                                  workers_.decode_drain_seconds(queued_output_tokens_));
  return std::clamp(seconds, kRetryAfterMin, kRetryAfterMax);
}

void FirstPolicy::end_prompt(Dispatched& entry) {
  if (!entry.prompt_running) return;
  entry.prompt_running = false;
  Worker* worker = entry.prefill >= 0 ? workers_.find(entry.prefill, entry.prefill_generation)
                                      : workers_.find(entry.decode, entry.decode_generation);
  if (worker == nullptr) return;
  worker->prefill_tokens.add(-entry.prompt_tokens);
  --worker->prefills;
  if (entry.fallback) --worker->local_prefills;
}

void FirstPolicy::prefill_finished(Ticket ticket) {
  if (const auto it = dispatched_.find(ticket); it != dispatched_.end()) end_prompt(it->second);
}

void FirstPolicy::finished(Ticket ticket, int /*output_tokens*/) {
  const auto it = dispatched_.find(ticket);
  TANDEM_CHECK(it != dispatched_.end(), "finished() for a ticket that is not dispatched");
  end_prompt(it->second);
  if (Worker* worker = workers_.find(it->second.decode, it->second.decode_generation)) {
    worker->kv_tokens.add(-it->second.share.kv_tokens);
    worker->slots_busy.add(-it->second.share.slots);
  }
  dispatched_.erase(it);
}

}  // namespace

std::unique_ptr<Scheduler> make_first_policy(const Config& config) {
  return std::make_unique<FirstPolicy>(config);
}

}  // namespace tandem::scheduler

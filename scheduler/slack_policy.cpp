// The policy that balances supply and consumption: requests wait in the order of their slack, fair
// between tenants, until a placement within their targets exists; every prediction is corrected by
// what became of earlier ones; roles follow the load.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <set>
#include <unordered_map>

#include "scheduler/fair_queue.h"
#include "scheduler/output_predictor.h"
#include "scheduler/placement.h"
#include "scheduler/policies.h"
#include "scheduler/prefix_index.h"
#include "scheduler/retry_book.h"
#include "scheduler/role_control.h"

namespace tandem::scheduler {
namespace {

// What a client without any worker to serve it is told to wait: a lost worker is dialled again by
// then.
constexpr double kReconnectSeconds = 2;
// Before predictions have been compared with what came: the 90% bound as a multiple of the median.
constexpr double kUncalibratedBound = 1.5;
constexpr double kBoundQuantile = 0.9;
// A coupled worker computes prompts at this part of a prefill worker's speed, for estimates of
// waiting.
constexpr double kCoupledPrefillPart = 0.5;
// Drain rates are measured over this long, and believed after this much busy time.
constexpr double kRateSeconds = 10;
constexpr double kRateSecondsMin = 0.5;
// Sequences that share a decode step, for the work that an answer is charged with.
constexpr double kChargedBatch = 16;
// A request is held back, for the sake of those that decode, while its prompt could still take this
// many times its prediction.
constexpr double kHoldMargin = 1.15;
// At most this part of the queue is kept for clients that were told to come back.
constexpr int kKeptPart = 2;
constexpr std::chrono::seconds kKeptFor{1};

struct Queued {
  Ticket ticket = 0;
  Request request;
  TimePoint arrived{};
  TimePoint expires{};
  const char* expiry = "queue_deadline";  // What it is refused with then
  double prefill_ms = 0;                  // On the mean worker
  double work_ms = 0;
  bool waited_for_decode = false;
};

struct Dispatched {
  Path path = Path::kRefuse;
  LaneShare prompt;
  LaneShare decode;
  bool prompt_running = true;
  bool first_token = false;
  double rest_ms = 0;  // Predicted from the dispatch to the first token, uncorrected
  TimePoint at{};
  std::string tenant;
  uint64_t session = 0;
};

double ms_since(TimePoint from, TimePoint to) { return std::max(0.0, to_ms(to - from)); }

class SlackPolicy final : public Scheduler {
 public:
  explicit SlackPolicy(const Config& config)
      : limits_(config.scheduler),
        slo_(config.slo),
        context_(config.model.context),
        lanes_(config),
        placement_(config, lanes_),
        queue_(config.scheduler.starvation, config.scheduler.tenants_max,
               parse_weights(config.scheduler.tenant_weights).value_or(Weights{})),
        outputs_(config.scheduler.output_quantile, config.scheduler.tenants_max),
        prefixes_(config.scheduler.prefix_index_bytes),
        sessions_(config.scheduler.session_index_bytes),
        roles_(config.ratio,
               {.ttft_ms = to_ms(config.slo.ttft), .tpot_ms = to_ms(config.slo.tpot)}) {}

  void worker_joined(WorkerIndex worker, const WorkerState& state) override {
    lanes_.join(worker, state);
  }
  void worker_updated(WorkerIndex worker, const WorkerState& state) override {
    lanes_.update(worker, state);
  }
  void worker_left(WorkerIndex worker) override;
  void observe(WorkerIndex worker, const StepSample& sample) override {
    lanes_.observe(worker, sample);
  }
  void cache_changed(WorkerIndex worker, std::span<const CacheEvent> events) override;

  void submit(Ticket ticket, const Request& request, TimePoint now) override;
  void withdraw(Ticket ticket) override;
  std::vector<Decision> poll(TimePoint now) override;
  TimePoint next_wakeup() const override;
  void prefill_finished(Ticket ticket) override;
  void first_token(Ticket ticket, TimePoint now) override;
  void finished(Ticket ticket, int output_tokens) override;
  std::vector<RoleMove> role_moves(TimePoint now) override;
  void role_move_failed(WorkerIndex worker, TimePoint now) override { roles_.failed(worker, now); }
  Recommendation recommendation() const override { return roles_.recommendation(); }
  double retry_after_seconds(TimePoint) const override {
    return std::clamp(wait_s(), RetryBook::kWaitMin, RetryBook::kWaitMax);
  }
  int queued() const override { return queue_.size(); }
  int dispatched() const override { return static_cast<int>(dispatched_.size()); }

 private:
  using Weights = std::unordered_map<std::string, double>;

  double ttft_ms(const Request& request) const {
    return request.ttft_slo > Duration{} ? to_ms(request.ttft_slo) : to_ms(slo_.ttft);
  }
  double tpot_ms(const Request& request) const {
    return request.tpot_slo > Duration{} ? to_ms(request.tpot_slo) : to_ms(slo_.tpot);
  }
  Asked asked(const Queued& queued, TimePoint now);
  Queued prepare(Ticket ticket, const Request& request, TimePoint now);
  bool admit(Queued& queued, TimePoint now);
  std::string impossible(const Request& request, double prefill_ms);
  double servers() const;
  double rate() const;
  double wait_s() const;
  void enqueue(Queued queued, bool resumed);
  void take_out(uint64_t id, bool served);
  void expire(TimePoint now, std::vector<Decision>& out);
  Decision place(Queued& queued, const Placed& placed, TimePoint now);
  void dispatch(const Queued& queued, const Placed& placed, Decision& decision, TimePoint now);
  Decision refuse(const Queued& queued, ErrorCode code, std::string reason, double wait) const;
  void end_prompt(Dispatched& entry);
  void measure(TimePoint now);

  const SchedulerConfig limits_;
  const SloConfig slo_;
  const int context_;
  WorkerLanes lanes_;
  Placement placement_;
  FairQueue queue_;
  OutputPredictor outputs_;
  PrefixIndex prefixes_;
  PrefixIndex sessions_;  // A session's id in place of a block's hash
  RetryBook book_;
  RoleControl roles_;

  uint64_t arrivals_ = 0;
  std::unordered_map<uint64_t, Queued> waiting_;  // By order of arrival
  std::unordered_map<Ticket, uint64_t> ids_;
  std::set<std::pair<TimePoint, uint64_t>> expiries_;
  std::vector<Decision> refused_;  // At submit; handed out by the next poll()
  std::unordered_map<Ticket, Dispatched> dispatched_;
  std::vector<PrefixMatch> matches_;
  double queued_ms_ = 0;  // Prompt work that waits
  int decoding_ = 0;      // Sequences whose prompt is computed
  int waiting_for_decode_ = 0;
  // How fast waiting prompt work has been taken lately, while any waited.
  double busy_s_ = 0, busy_ms_ = 0;
  TimePoint measured_{};
  // Measured over predicted time to the first token, by path.
  std::array<RecentQuantiles, 3> ttft_ratio_;
};

uint64_t fingerprint(const Request& request) {
  uint64_t hash = std::hash<std::string>{}(request.tenant);
  const auto mix = [&hash](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  };
  mix(static_cast<uint64_t>(request.prompt_tokens));
  mix(static_cast<uint64_t>(request.max_tokens));
  mix(request.session);
  mix(request.fingerprint);
  mix(request.blocks.empty() ? 0 : request.blocks.back());
  return hash;
}

void SlackPolicy::worker_left(WorkerIndex worker) {
  lanes_.leave(worker);
  prefixes_.forget_worker(worker);
  sessions_.forget_worker(worker);
  roles_.left(worker);
}

void SlackPolicy::cache_changed(WorkerIndex worker, std::span<const CacheEvent> events) {
  for (const CacheEvent& event : events)
    event.stored ? prefixes_.store(event.hash, worker) : prefixes_.remove(event.hash, worker);
}

Asked SlackPolicy::asked(const Queued& queued, TimePoint now) {
  const Request& request = queued.request;
  Asked asked{.request = &request};
  asked.output_tokens = outputs_.predict(request.tenant, request.max_tokens);
  const auto kv = [&](int64_t output) {
    return std::min<int64_t>(context_, request.prompt_tokens + output) * request.choices;
  };
  asked.kv_tokens = kv(asked.output_tokens);
  asked.kv_tokens_full = kv(request.max_tokens);
  asked.ttft_ms = ttft_ms(request);
  asked.tpot_ms = tpot_ms(request);
  asked.waited_ms = ms_since(queued.arrived, now);
  // Targets order and place. Only who asks for it is refused for them, so nobody is held for longer
  // than its own first token allows, and nobody in the middle of an answer.
  asked.hold = request.refuse_on_miss ||
               (request.priority != kResumedPriority &&
                asked.waited_ms + kHoldMargin * queued.prefill_ms < asked.ttft_ms);
  prefixes_.match(request.blocks, matches_);
  asked.cached = matches_;
  if (request.session != 0) asked.session = sessions_.latest(request.session);
  return asked;
}

Queued SlackPolicy::prepare(Ticket ticket, const Request& request, TimePoint now) {
  Queued queued{.ticket = ticket, .request = request, .arrived = now};
  queued.expires = now + limits_.queue_deadline;
  if (request.deadline != TimePoint{} && request.deadline < queued.expires) {
    queued.expires = request.deadline;
    queued.expiry = "deadline";
  }
  int cached = request.cached_tokens;
  prefixes_.match(request.blocks, matches_);
  for (const PrefixMatch& match : matches_)
    cached = std::max(cached, match.blocks * limits_.prefix_block_tokens);
  const int uncached = std::max(1, request.prompt_tokens - cached);
  const CostParameters& costs = lanes_.typical();
  queued.prefill_ms = costs.prefill_ms(request.prompt_tokens - uncached, uncached);
  const int output = outputs_.predict(request.tenant, request.max_tokens);
  queued.work_ms = queued.prefill_ms +
                   output * request.choices * costs.decode_ms(kChargedBatch, 0) / kChargedBatch;
  roles_.load().arrived({.prompt_tokens = static_cast<double>(request.prompt_tokens),
                         .uncached_tokens = static_cast<double>(uncached),
                         .prefill_ms = queued.prefill_ms,
                         .predicted_output_tokens = static_cast<double>(output)},
                        now);
  return queued;
}

void SlackPolicy::submit(Ticket ticket, const Request& request, TimePoint now) {
  TANDEM_CHECK(!ids_.contains(ticket) && !dispatched_.contains(ticket), "ticket used twice");
  Queued queued = prepare(ticket, request, now);
  const bool resumed = request.priority == kResumedPriority;
  if (!resumed && !admit(queued, now)) return;
  enqueue(std::move(queued), resumed);
}

// Which target cannot be met even by an idle worker, and by how much; empty: none.
std::string SlackPolicy::impossible(const Request& request, double prefill_ms) {
  const double step = lanes_.typical().decode_ms(1, request.prompt_tokens);
  if (prefill_ms > ttft_ms(request))
    return fmt::format("ttft_impossible: {:.0f} ms idle, {:.0f} allowed", prefill_ms,
                       ttft_ms(request));
  if (request.max_tokens > 1 && step > tpot_ms(request))
    return fmt::format("tpot_impossible: {:.1f} ms idle, {:.1f} allowed", step, tpot_ms(request));
  return {};
}

// Refuses at the door where the queue is full, or where a client that wants no late answer would
// get one. Those that come back as they were told find their place.
bool SlackPolicy::admit(Queued& queued, TimePoint now) {
  const Request& request = queued.request;
  const bool known = lanes_.usable_decode() > 0 || lanes_.usable_prefill() > 0;
  if (request.refuse_on_miss && known) {
    if (std::string why = impossible(request, queued.prefill_ms); !why.empty()) {
      refused_.push_back(
          refuse(queued, ErrorCode::kInvalidArgument, std::move(why), RetryBook::kWaitMax));
      return false;
    }
  }
  const bool booked = book_.claim(fingerprint(request), now);
  const double work_s = queued.prefill_ms / 1e3 / std::max(1e-3, rate());
  const int kept =
      booked ? 0 : std::min(book_.places_until(now + kKeptFor), limits_.queue_max / kKeptPart);
  if (queue_.size() >= limits_.queue_max - kept) {
    // A tenant that fills the queue makes room for one that does not.
    const uint64_t victim = kept > 0 && queue_.size() < limits_.queue_max
                                ? 0
                                : queue_.newest_of_longest(request.tenant);
    const double wait = book_.book(fingerprint(victim != 0 ? waiting_.at(victim).request : request),
                                   wait_s(), work_s, now);
    if (victim == 0) {
      refused_.push_back(refuse(queued, ErrorCode::kResourceExhausted, "queue_full", wait));
      return false;
    }
    refused_.push_back(
        refuse(waiting_.at(victim), ErrorCode::kResourceExhausted, "queue_full", wait));
    take_out(victim, false);
  }
  if (!request.refuse_on_miss || !known) return true;
  // Late already when its turn comes: refuse, unless it was told to come now.
  const double room_s = (ttft_ms(request) - queued.prefill_ms) / 1e3;
  const TimePoint latest = now + std::chrono::duration_cast<Duration>(
                                     std::chrono::duration<double>(std::max(0.0, room_s)));
  const double late_s = wait_s() + (booked ? 0 : book_.work_until(latest)) - room_s;
  if (late_s > 0 && !booked) {
    const double wait = book_.book(fingerprint(request), late_s, work_s, now);
    refused_.push_back(refuse(queued, ErrorCode::kResourceExhausted, "slo_ttft", wait));
    return false;
  }
  if (!booked && latest < queued.expires) {
    queued.expires = latest;
    queued.expiry = "slo_ttft";
  }
  return true;
}

void SlackPolicy::enqueue(Queued queued, bool resumed) {
  const uint64_t id = ++arrivals_;
  ids_.emplace(queued.ticket, id);
  expiries_.emplace(queued.expires, id);
  queued_ms_ += queued.prefill_ms;
  const double start_ms = std::max(0.0, ttft_ms(queued.request) - queued.prefill_ms);
  queue_.push(
      {.id = id,
       .tenant = queued.request.tenant,
       .priority = resumed ? kResumedPriority : queued.request.priority,
       .arrived = queued.arrived,
       .latest_start = queued.arrived + std::chrono::duration_cast<Duration>(
                                            std::chrono::duration<double, std::milli>(start_ms)),
       .work = queued.work_ms});
  waiting_.emplace(id, std::move(queued));
}

void SlackPolicy::take_out(uint64_t id, bool served) {
  const auto it = waiting_.find(id);
  queued_ms_ = waiting_.size() == 1 ? 0 : queued_ms_ - it->second.prefill_ms;
  if (it->second.waited_for_decode) --waiting_for_decode_;
  expiries_.erase({it->second.expires, id});
  ids_.erase(it->second.ticket);
  served ? queue_.serve(id) : queue_.erase(id);
  waiting_.erase(it);
}

void SlackPolicy::withdraw(Ticket ticket) {
  if (const auto it = ids_.find(ticket); it != ids_.end()) take_out(it->second, false);
  std::erase_if(refused_, [&](const Decision& decision) { return decision.ticket == ticket; });
}

TimePoint SlackPolicy::next_wakeup() const {
  if (!refused_.empty()) return TimePoint::min();
  return expiries_.empty() ? TimePoint::max() : expiries_.begin()->first;
}

void SlackPolicy::expire(TimePoint now, std::vector<Decision>& out) {
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    const uint64_t id = expiries_.begin()->second;
    const Queued& queued = waiting_.at(id);
    const bool slo = queued.expiry == std::string_view("slo_ttft");
    const double work_s = queued.prefill_ms / 1e3 / std::max(1e-3, rate());
    const double wait = book_.book(fingerprint(queued.request), wait_s(), work_s, now);
    out.push_back(refuse(queued, slo ? ErrorCode::kResourceExhausted : ErrorCode::kDeadlineExceeded,
                         queued.expiry, wait));
    take_out(id, false);
  }
}

std::vector<Decision> SlackPolicy::poll(TimePoint now) {
  std::vector<Decision> decisions = std::move(refused_);
  refused_.clear();
  lanes_.set_now(to_ms(now.time_since_epoch()));
  measure(now);
  expire(now, decisions);
  // The head is not overtaken, else what is large would starve.
  while (const uint64_t id = queue_.head(now)) {
    Queued& queued = waiting_.at(id);
    const Placed placed = placement_.choose(asked(queued, now));
    if (placed.kind == Placed::Kind::kWaitPrefill || placed.kind == Placed::Kind::kWaitDecode) {
      if (placed.kind == Placed::Kind::kWaitDecode && !queued.waited_for_decode) {
        queued.waited_for_decode = true;
        ++waiting_for_decode_;
      }
      break;
    }
    decisions.push_back(place(queued, placed, now));
    take_out(id, true);
  }
  return decisions;
}

Decision SlackPolicy::place(Queued& queued, const Placed& placed, TimePoint now) {
  switch (placed.kind) {
    case Placed::Kind::kNoWorker:
      return refuse(queued, ErrorCode::kUnavailable, "no_worker", kReconnectSeconds);
    case Placed::Kind::kNoDecodeWorker:
      return refuse(queued, ErrorCode::kUnavailable, "no_decode_worker", kReconnectSeconds);
    case Placed::Kind::kTooLarge:
      return refuse(queued, ErrorCode::kInvalidArgument, "too_large", RetryBook::kWaitMin);
    default:
      break;
  }
  Decision decision{.ticket = queued.ticket,
                    .path = placed.path,
                    .prefill = placed.prefill,
                    .decode = placed.decode,
                    .reason = std::string(placed.reason)};
  if (queued.waited_for_decode && placed.path == Path::kRemote) decision.reason = "credits";
  const RecentQuantiles& ratio = ttft_ratio_[static_cast<size_t>(placed.path)];
  const double waited = ms_since(queued.arrived, now);
  decision.predicted_ttft_ms = waited + placed.ttft_ms * ratio.quantile(0.5, 1);
  decision.predicted_ttft_bound_ms =
      waited + placed.ttft_ms * ratio.quantile(kBoundQuantile, kUncalibratedBound);
  decision.predicted_tpot_ms = placed.tpot_ms;
  dispatch(queued, placed, decision, now);
  return decision;
}

void SlackPolicy::dispatch(const Queued& queued, const Placed& placed, Decision& decision,
                           TimePoint now) {
  const Request& request = queued.request;
  Dispatched entry{.path = placed.path,
                   .rest_ms = placed.ttft_ms,
                   .at = now,
                   .tenant = request.tenant,
                   .session = request.session};
  entry.prompt = {.worker = placed.prefill >= 0 ? placed.prefill : placed.decode,
                  .prompt_tokens = placed.prompt_tokens,
                  .prompt_ms = placed.prompt_ms};
  lanes_.take(entry.prompt);
  if (placed.decode >= 0) {
    const int output = outputs_.predict(request.tenant, request.max_tokens);
    const auto kv = [&](int64_t tokens) {
      return std::min<int64_t>(context_, request.prompt_tokens + tokens) * request.choices;
    };
    entry.decode = {.worker = placed.decode,
                    .kv_tokens = kv(output),
                    .context_tokens = kv(output / 2),
                    .slots = request.choices};
    lanes_.take(entry.decode);
    if (request.session != 0) sessions_.store(request.session, placed.decode);
  }
  busy_ms_ += queued.prefill_ms;
  dispatched_.emplace(decision.ticket, std::move(entry));
}

Decision SlackPolicy::refuse(const Queued& queued, ErrorCode code, std::string reason,
                             double wait) const {
  Decision decision{.ticket = queued.ticket, .path = Path::kRefuse, .reason = std::move(reason)};
  decision.code = code;
  decision.retry_after_seconds = std::clamp(wait, RetryBook::kWaitMin, RetryBook::kWaitMax);
  return decision;
}

double SlackPolicy::servers() const {
  return std::max(0.5, lanes_.usable_prefill() + kCoupledPrefillPart * lanes_.usable_coupled());
}

// Prompt work that is taken per second, as seconds of it: measured while somebody waited, else one
// per worker.
double SlackPolicy::rate() const {
  if (busy_s_ < kRateSecondsMin) return servers();
  return std::clamp(busy_ms_ / 1e3 / busy_s_, 0.02 * servers(), 2 * servers());
}

// How long what is queued and bound keeps a newcomer waiting.
double SlackPolicy::wait_s() const {
  double bound_ms = 0;
  for (const Lane& lane : lanes_.all())
    if (lane.prefills_for_others() || lane.couples()) bound_ms += lane.waiting_ms(lanes_.now_ms());
  return bound_ms / 1e3 / servers() + queued_ms_ / 1e3 / rate();
}

void SlackPolicy::measure(TimePoint now) {
  const double seconds = std::clamp(to_seconds(now - measured_), 0.0, 1.0);
  measured_ = now;
  const double keep = std::exp(-seconds / kRateSeconds);
  if (queue_.size() > 0) busy_s_ = busy_s_ * keep + seconds;
  // What is dispatched without a wait says nothing about how fast a queue would drain.
  busy_ms_ = queue_.size() > 0 ? busy_ms_ * keep
             : busy_s_ > 0     ? std::min(busy_ms_, busy_s_ * 1e3 * servers())
                               : 0;
}

void SlackPolicy::end_prompt(Dispatched& entry) {
  if (!entry.prompt_running) return;
  entry.prompt_running = false;
  lanes_.end_prompt(entry.prompt);
  if (entry.decode.worker >= 0) decoding_ += entry.decode.slots;
}

void SlackPolicy::prefill_finished(Ticket ticket) {
  if (const auto it = dispatched_.find(ticket); it != dispatched_.end()) end_prompt(it->second);
}

void SlackPolicy::first_token(Ticket ticket, TimePoint now) {
  const auto it = dispatched_.find(ticket);
  if (it == dispatched_.end() || it->second.first_token) return;
  Dispatched& entry = it->second;
  entry.first_token = true;
  if (now < entry.at || entry.rest_ms <= 0) return;  // The clock jumped
  ttft_ratio_[static_cast<size_t>(entry.path)].add(to_ms(now - entry.at) / entry.rest_ms);
}

void SlackPolicy::finished(Ticket ticket, int output_tokens) {
  const auto it = dispatched_.find(ticket);
  TANDEM_CHECK(it != dispatched_.end(), "finished() for a ticket that is not dispatched");
  Dispatched& entry = it->second;
  end_prompt(entry);
  if (entry.decode.worker >= 0) {
    lanes_.release(entry.decode);
    decoding_ -= entry.decode.slots;
  }
  if (output_tokens >= 0) {
    outputs_.learn(entry.tenant, output_tokens);
    if (entry.path != Path::kPrefillOnly) roles_.load().ended(output_tokens);
  }
  dispatched_.erase(it);
}

std::vector<RoleMove> SlackPolicy::role_moves(TimePoint now) {
  lanes_.set_now(to_ms(now.time_since_epoch()));
  std::vector<RoleWorker> workers;
  RoleView view{.costs = lanes_.typical()};
  double decoders = 0, servers = 0, step_ms = 0, batch = 0;
  const auto shape = roles_.load().shape();
  for (WorkerIndex i = 0; i < static_cast<int>(lanes_.all().size()); ++i) {
    const Lane& lane = lanes_.at(i);
    if (!lanes_.present(i) || lane.role == Role::kPartitioned) continue;
    const double waiting = lane.waiting_ms(lanes_.now_ms());
    // Half an answer of the mean length is still to come, on average.
    const double decode = lane.batch > 0 && shape ? shape->output_tokens / 2 * lane.step_ms : 0;
    workers.push_back({i, lane.role, lane.usable, waiting + decode});
    if (lane.decodes()) {
      ++decoders;
      view.slots += lane.slots;
      // Beside prompts a step takes what the target leaves it.
      const double step =
          lane.local_tokens > 0 ? std::max(lane.step_ms, to_ms(slo_.tpot)) : lane.step_ms;
      step_ms += step * lane.batch;
      batch += lane.batch;
    }
    if (lane.prefills_for_others() || lane.couples()) {
      ++servers;
      view.backlog_ms += waiting;
    }
  }
  if (decoders > 0) view.slots /= decoders;
  view.backlog_ms = (view.backlog_ms + queued_ms_) / std::max(1.0, servers);
  view.waiting_for_decode = waiting_for_decode_;
  view.workers = workers;
  roles_.load().decoding(decoding_, batch > 0 ? step_ms / batch : 0, now);
  std::vector<RoleMove> moves;
  if (auto move = roles_.step(view, now)) moves.push_back(std::move(*move));
  return moves;
}

}  // namespace

std::unique_ptr<Scheduler> make_slack_policy(const Config& config) {
  return std::make_unique<SlackPolicy>(config);
}

}  // namespace tandem::scheduler

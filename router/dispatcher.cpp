#include "router/dispatcher.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <climits>

#include "common/log.h"
#include "common/random.h"
#include "router/dispatch_record.h"

namespace tandem::router {

using scheduler::Path;
using scheduler::path_name;
using scheduler::WorkerIndex;

namespace {

constexpr int kTransferTokenBytes = 16;
constexpr std::chrono::seconds kTick{1};

scheduler::Ticket ticket_of(TransferId transfer) { return transfer.value; }

}  // namespace

Dispatcher::Dispatcher(const Parts& parts)
    : parts_(parts),
      started_(parts.clock.now()),
      scheduler_(scheduler::make_scheduler(parts.config)),
      role_moves_(parts.pool, *scheduler_, parts.metrics, parts.config.router.role_deadline),
      timer_(parts.io),
      second_timer_(parts.io) {}

Dispatcher::~Dispatcher() = default;

void Dispatcher::start() { arm_tick(); }

void Dispatcher::submit(AttemptSpec spec) {
  boost::asio::post(parts_.io, [this, spec = std::move(spec)]() mutable { take(std::move(spec)); });
}

void Dispatcher::cancel(TransferId transfer, std::string reason) {
  boost::asio::post(parts_.io, [this, transfer, reason = std::move(reason)] {
    Attempt* attempt = find(transfer);
    if (attempt == nullptr) return;
    cancel_legs(*attempt, reason);
    end(transfer, "cancelled");
  });
}

void Dispatcher::cancel_choice(TransferId transfer, int choice) {
  boost::asio::post(parts_.io, [this, transfer, choice] {
    Attempt* attempt = find(transfer);
    if (attempt == nullptr || attempt->done[static_cast<size_t>(choice)]) return;
    const bool last = attempt->open == 1;
    const std::string reason = "stop string";
    if (last) {
      cancel_legs(*attempt, reason);
    } else if (parts_.pool.is_up(attempt->decode)) {
      const link::CancelCommand command{.transfer = transfer, .choice = choice, .reason = reason};
      // A failed send closes the session, which ends the attempt in worker_down().
      (void)parts_.pool.send(attempt->decode.index, link::FrameKind::kCancel, command.encode());
    }
    close_choice(*attempt, choice);
  });
}

Status Dispatcher::change_role(const std::string& worker, Role to) {
  return parts_.pool.run_there(
      [this, worker, to] { return role_moves_.ask(worker, to, parts_.clock.now()); });
}

void Dispatcher::stop(Status reason) {
  boost::asio::post(parts_.io, [this, reason = std::move(reason)] {
    stopped_ = reason;
    while (!attempts_.empty())
      fail(*attempts_.begin()->second, {.status = reason, .retryable = false, .phase = "decode"});
    timer_.cancel();
    second_timer_.cancel();
  });
}

void Dispatcher::take(AttemptSpec spec) {
  auto owned = std::make_unique<Attempt>();
  Attempt& attempt = *owned;
  attempt.spec = std::move(spec);
  attempt.open = attempt.spec.leg.choices;
  attempt.done.resize(static_cast<size_t>(attempt.open));
  attempt.queued_at = attempt.stage_since = parts_.clock.now();
  parts_.stages.enter(Stage::kQueued);
  const TransferId transfer = attempt.transfer();
  attempts_.emplace(transfer, std::move(owned));
  const link::Leg& leg = attempt.spec.leg;
  parts_.timeline.attempt_queued(attempt.spec.timeline, transfer,
                                 static_cast<int>(leg.tokens.size()), attempt.spec.resumed);
  if (!stopped_.ok())
    return fail(attempt, {.status = stopped_, .retryable = false, .phase = "prefill"});
  // Two models must not write one answer.
  if (attempt.spec.generation != 0 && attempt.spec.generation != parts_.pool.generation())
    return fail(attempt, {.status = Status(ErrorCode::kUnavailable, "the model has changed"),
                          .retryable = false,
                          .phase = "decode"});

  const int emitted = static_cast<int>(leg.tokens.size()) - leg.prompt_count;
  scheduler::Request& request = attempt.spec.request;
  request.prompt_tokens = static_cast<int>(leg.tokens.size());
  request.max_tokens = leg.max_tokens - emitted;
  request.choices = leg.choices;
  // A stream that has begun and lost its worker goes before those that have not.
  if (attempt.spec.resumed) {
    request.priority = INT_MIN;
    request.refuse_on_miss = false;  // That was decided when it began
  }
  request.prefill_only = request.max_tokens == 1;
  for (const WorkerKey& key : attempt.spec.avoid)
    if (parts_.pool.is_up(key)) request.avoid.push_back(key.index);
  for (const auto& [key, shun] : shunned_)
    if (shun.until > attempt.queued_at) request.avoid.push_back(key);
  scheduler_->submit(ticket_of(transfer), request, attempt.queued_at);
  pump();
}

// Takes the decisions that are possible now. Commanding may lose a worker, which may make others
// possible.
void Dispatcher::pump() {
  if (pumping_ || !stopped_.ok()) return;
  pumping_ = true;
  for (;;) {
    const std::vector<scheduler::Decision> decisions = scheduler_->poll(parts_.clock.now());
    for (const scheduler::Decision& decision : decisions) decide(decision);
    open_gate();
    if (decisions.empty()) break;
  }
  pumping_ = false;
  count();
  arm();
}

void Dispatcher::decide(const scheduler::Decision& decision) {
  Attempt* attempt = find(TransferId{decision.ticket});
  if (attempt == nullptr) {
    // It was given up between the scheduler's decision and now: only its share is left.
    if (decision.path != Path::kRefuse) scheduler_->finished(decision.ticket, -1);
    return;
  }
  parts_.metrics.queue_schedule.observe(to_seconds(parts_.clock.now() - attempt->queued_at));
  if (parts_.decisions != nullptr) note_record(*attempt, decision);
  attempt->decision = decision;
  if (decision.path == Path::kRefuse) return refuse(*attempt, decision);
  attempt->granted = true;
  attempt->prefill = parts_.pool.key(decision.prefill);
  attempt->decode = parts_.pool.key(decision.decode);
  gate_.push_back(attempt->transfer());
}

void Dispatcher::refuse(Attempt& attempt, const scheduler::Decision& decision) {
  log_debug("event=refused request={} reason={}", attempt.spec.leg.request, decision.reason);
  const std::string_view stage =
      stage_reason(parts_.stages.full().value_or(parts_.stages.fullest()));
  post_event(attempt, {attempt.transfer(), Refused{decision, stage}});
  parts_.timeline.attempt_ended(attempt.spec.timeline, attempt.transfer(), decision.reason);
  write_record(attempt, "refused", -1);
  leave_stage(attempt, false);
  attempts_.erase(attempt.transfer());
}

void Dispatcher::open_gate() {
  while (!gate_.empty()) {
    Attempt* attempt = find(gate_.front());
    if (attempt != nullptr && !passes(*attempt)) return;
    gate_.pop_front();
    if (attempt != nullptr) dispatch(*attempt);
  }
}

// Is there room for it in every stage that it will pass?
bool Dispatcher::passes(const Attempt& attempt) const {
  if (parts_.stages.full()) return false;
  if (!attempt.remote() || committed_tokens_ == 0) return true;
  const auto tokens = static_cast<int64_t>(attempt.spec.leg.tokens.size());
  return committed_tokens_ + tokens <= parts_.config.scheduler.unconsumed_tokens_max;
}

void Dispatcher::dispatch(Attempt& attempt) {
  const scheduler::Decision& decision = attempt.decision;
  const TimePoint now = parts_.clock.now();
  attempt.dispatched = true;
  attempt.dispatched_at = now;
  attempt.quiet_until =
      now + parts_.config.router.prefill_quiet +
      std::chrono::microseconds(static_cast<int64_t>(decision.predicted_ttft_ms * 10'000));
  if (attempt.remote()) committed_tokens_ += static_cast<int64_t>(attempt.spec.leg.tokens.size());
  move(attempt, Stage::kPrefill);
  Dispatched event{.path = decision.path, .reason = decision.reason};
  event.predicted_ttft_ms = decision.predicted_ttft_ms;
  event.generation = parts_.pool.generation();
  if (attempt.prefill.index >= 0) event.prefill = parts_.pool.hello(attempt.prefill.index).name;
  if (attempt.decode.index >= 0) event.decode = parts_.pool.hello(attempt.decode.index).name;
  parts_.timeline.attempt_dispatched(
      attempt.spec.timeline, attempt.transfer(),
      {path_name(decision.path), event.prefill, event.decode, decision.reason,
       decision.predicted_ttft_ms, decision.predicted_ttft_bound_ms});
  log_debug("event=dispatched request={} path={} prefill={} decode={} reason={}",
            attempt.spec.leg.request, path_name(decision.path), event.prefill, event.decode,
            decision.reason);
  post_event(attempt, {attempt.transfer(), std::move(event)});
  command(attempt);
}

void Dispatcher::command(Attempt& attempt) {
  const TransferId transfer = attempt.transfer();
  link::Leg& leg = attempt.spec.leg;
  const Duration left = attempt.spec.request.deadline - parts_.clock.now();
  leg.deadline_ms =
      std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
  leg.tpot_slo_us =
      std::chrono::duration_cast<std::chrono::microseconds>(attempt.spec.request.tpot_slo).count();
  const std::string token = random_bytes(kTransferTokenBytes);
  Status status;
  WorkerKey culprit;
  if (attempt.path() != Path::kPrefillOnly) {
    const link::DecodeCommand decode{
        .leg = leg, .local = attempt.path() == Path::kLocal, .token = token};
    status = parts_.pool.send(attempt.decode.index, link::FrameKind::kDecode, decode.encode());
    if (find(transfer) == nullptr) return;  // The send lost the worker, and with it the attempt
    if (!status.ok()) culprit = attempt.decode;
  }
  if (status.ok() && attempt.path() != Path::kLocal) {
    link::PrefillCommand prefill{.leg = leg, .token = token};
    if (attempt.path() == Path::kRemote) {
      const link::Hello& decode = parts_.pool.hello(attempt.decode.index);
      prefill.decode_listen = decode.listen;
      prefill.decode_name = decode.name;
      prefill.decode_epoch = decode.epoch;
    }
    status = parts_.pool.send(attempt.prefill.index, link::FrameKind::kPrefill, prefill.encode());
    if (find(transfer) == nullptr) return;
    if (!status.ok()) culprit = attempt.prefill;
  }
  if (!status.ok()) {
    fail(attempt, {.status = status, .retryable = true, .phase = "prefill", .culprits = {culprit}});
    return;
  }
  leg.tokens = {};  // The flow has them; thousands of long prompts would lie here for nothing
}

void Dispatcher::fail(Attempt& attempt, AttemptFailed failure) {
  const TransferId transfer = attempt.transfer();
  const std::string outcome(error_code_name(failure.status.code()));
  log_warn("event=attempt_failed request={} phase={} reason={}", attempt.spec.leg.request,
           failure.phase, tandem::quoted(failure.status.message()));
  cancel_legs(attempt, failure.status.message());
  post_event(attempt, {transfer, std::move(failure)});
  end(transfer, outcome);
}

void Dispatcher::cancel_legs(const Attempt& attempt, const std::string& reason,
                             WorkerIndex except) {
  if (!attempt.dispatched) return;
  const std::string body =
      link::CancelCommand{.transfer = attempt.transfer(), .reason = reason}.encode();
  const bool prefill_holds = attempt.prefill.index >= 0 && !attempt.joined &&
                             !(attempt.prompt_done && attempt.path() == Path::kPrefillOnly);
  // A failed send closes the session; the worker then frees what this router held.
  if (prefill_holds && attempt.prefill.index != except && parts_.pool.is_up(attempt.prefill))
    (void)parts_.pool.send(attempt.prefill.index, link::FrameKind::kCancel, body);
  if (attempt.decode.index >= 0 && attempt.decode.index != except &&
      parts_.pool.is_up(attempt.decode))
    (void)parts_.pool.send(attempt.decode.index, link::FrameKind::kCancel, body);
}

// The one place where an attempt's shares go back.
void Dispatcher::end(TransferId transfer, std::string_view outcome) {
  const auto it = attempts_.find(transfer);
  if (it == attempts_.end()) return;
  Attempt& attempt = *it->second;
  parts_.timeline.attempt_ended(attempt.spec.timeline, transfer, outcome);
  const bool ok = outcome == "ok";
  // Lengths of answers that were cut off, or that other workers began, teach nothing.
  const int output =
      ok && !attempt.spec.resumed
          ? static_cast<int>(attempt.tokens_out / std::max(1, attempt.spec.leg.choices))
          : -1;
  if (attempt.granted)
    scheduler_->finished(ticket_of(transfer), output);
  else
    scheduler_->withdraw(ticket_of(transfer));
  write_record(attempt, outcome, output);
  leave_stage(attempt, ok);
  attempts_.erase(it);
  pump();
}

void Dispatcher::close_choice(Attempt& attempt, int choice) {
  std::vector<bool>::reference done = attempt.done[static_cast<size_t>(choice)];
  if (done) return;
  done = true;
  if (--attempt.open == 0) end(attempt.transfer(), "ok");
}

void Dispatcher::post_event(const Attempt& attempt, AttemptEvent event) {
  Outbox outbox;
  outbox.add(attempt.spec.mailbox, std::move(event));
}

Dispatcher::Attempt* Dispatcher::find(TransferId transfer) {
  const auto it = attempts_.find(transfer);
  return it == attempts_.end() ? nullptr : it->second.get();
}

// Through every stage up to `to`, as its path has them.
void Dispatcher::move(Attempt& attempt, Stage to) {
  if (attempt.stage >= to) return;
  const TimePoint now = parts_.clock.now();
  const auto tokens = attempt.spec.request.prompt_tokens;
  while (attempt.stage < to) {
    const Stage from = attempt.stage;
    parts_.stages.serve(from, now - attempt.stage_since);
    const bool skip = from == Stage::kPrefill && !attempt.remote();
    attempt.stage = skip ? Stage::kDecode : static_cast<Stage>(static_cast<int>(from) + 1);
    attempt.stage_since = now;
    parts_.stages.enter(attempt.stage);
    if (!attempt.remote()) continue;
    if (from == Stage::kPrefill) unconsumed_tokens_ += tokens;
    if (attempt.stage == Stage::kDecode) {
      unconsumed_tokens_ -= tokens;
      committed_tokens_ -= tokens;
    }
  }
  parts_.metrics.unconsumed_tokens.set(static_cast<double>(unconsumed_tokens_));
}

void Dispatcher::leave_stage(Attempt& attempt, bool served) {
  if (attempt.remote() && attempt.dispatched && attempt.stage < Stage::kDecode) {
    committed_tokens_ -= attempt.spec.request.prompt_tokens;
    if (attempt.stage > Stage::kPrefill) unconsumed_tokens_ -= attempt.spec.request.prompt_tokens;
    parts_.metrics.unconsumed_tokens.set(static_cast<double>(unconsumed_tokens_));
  }
  if (served)
    parts_.stages.serve(attempt.stage, parts_.clock.now() - attempt.stage_since);
  else
    parts_.stages.drop(attempt.stage);
}

// What was known and chosen, at the moment of choosing.
void Dispatcher::note_record(Attempt& attempt, const scheduler::Decision& decision) {
  const TimePoint now = parts_.clock.now();
  const scheduler::Request& request = attempt.spec.request;
  const SloConfig& slo = parts_.config.slo;
  attempt.record = std::make_unique<scheduler::DecisionRecord>();
  scheduler::DecisionRecord& record = *attempt.record;
  record.request = attempt.spec.leg.request;
  record.at_ms = to_ms(now - started_);
  record.waited_ms = to_ms(now - attempt.queued_at);
  record.prompt_tokens = request.prompt_tokens;
  record.cached_tokens = request.cached_tokens;
  record.max_tokens = request.max_tokens;
  record.choices = request.choices;
  record.priority = request.priority;
  record.ttft_slo_ms = to_ms(request.ttft_slo > Duration::zero() ? request.ttft_slo : slo.ttft);
  record.tpot_slo_ms = to_ms(request.tpot_slo > Duration::zero() ? request.tpot_slo : slo.tpot);
  record.path = path_name(decision.path);
  record.reason = decision.reason;
  record.predicted_ttft_ms = decision.predicted_ttft_ms;
  record.predicted_ttft_bound_ms = decision.predicted_ttft_bound_ms;
  record.predicted_tpot_ms = decision.predicted_tpot_ms;
  const auto candidate = [&](WorkerIndex worker) {
    record.candidates.push_back(parts_.pool.state(worker));
  };
  if (decision.prefill >= 0) record.prefill = parts_.pool.hello(decision.prefill).name;
  if (decision.decode >= 0) record.decode = parts_.pool.hello(decision.decode).name;
  if (decision.prefill >= 0) candidate(decision.prefill);
  if (decision.decode >= 0 && decision.decode != decision.prefill) candidate(decision.decode);
  for (WorkerIndex worker = 0; worker < parts_.pool.size(); ++worker) {
    if (record.candidates.size() >= scheduler::kLoggedCandidatesMax) break;
    if (worker != decision.prefill && worker != decision.decode && parts_.pool.is_up(worker))
      candidate(worker);
  }
}

void Dispatcher::write_record(Attempt& attempt, std::string_view outcome, int output_tokens) {
  if (!attempt.record) return;
  scheduler::DecisionRecord& record = *attempt.record;
  record.outcome = outcome;
  record.output_tokens = output_tokens;
  if (attempt.first_token_at != TimePoint{}) {
    record.ttft_ms = to_ms(attempt.first_token_at - attempt.queued_at);
    const int64_t each = attempt.tokens_out / std::max(1, attempt.spec.leg.choices);
    if (each > 1)
      record.tpot_ms =
          to_ms(attempt.last_token_at - attempt.first_token_at) / static_cast<double>(each - 1);
  }
  parts_.decisions->write(std::move(record));
  attempt.record.reset();
}

void Dispatcher::sweep() {
  const TimePoint now = parts_.clock.now();
  std::vector<TransferId> silent;
  for (const auto& [transfer, attempt] : attempts_)
    if (attempt->dispatched && attempt->quiet_until <= now) silent.push_back(transfer);
  for (const TransferId transfer : silent) {
    Attempt* attempt = find(transfer);
    if (attempt == nullptr) continue;
    AttemptFailed failure{.status =
                              Status(ErrorCode::kDeadlineExceeded, "the workers did not answer")};
    failure.phase = attempt->prompt_done ? "decode" : "prefill";
    failure.culprits.push_back(attempt->prompt_done ? attempt->decode : attempt->prompt_worker());
    fail(*attempt, std::move(failure));
  }
  pump();
}

// One timer for the scheduler's next wish and, while anything runs, the sweep.
void Dispatcher::arm() {
  TimePoint next = scheduler_->next_wakeup();
  if (!attempts_.empty()) next = std::min(next, parts_.clock.now() + parts_.config.router.sweep);
  if (next == TimePoint::max() || next >= armed_for_ || !stopped_.ok()) return;
  armed_for_ = next;
  timer_.expires_at(next);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    armed_for_ = TimePoint::max();
    sweep();
  });
}

void Dispatcher::count() {
  const int running = scheduler_->dispatched();
  const int queued = scheduler_->queued();
  running_.store(running, std::memory_order_relaxed);
  queued_.store(queued, std::memory_order_relaxed);
  parts_.metrics.running.set(running);
  parts_.metrics.running_alias.set(running);
  parts_.metrics.waiting.set(queued);
  parts_.metrics.waiting_alias.set(queued);
}

scheduler::Recommendation Dispatcher::recommendation() const {
  const std::lock_guard lock(recommendation_mutex_);
  return recommendation_;
}

// Once a second: roles, and what others read of the scheduler.
void Dispatcher::tick() {
  const TimePoint now = parts_.clock.now();
  role_moves_.tick(now);
  retry_after_.store(scheduler_->retry_after_seconds(now), std::memory_order_relaxed);
  scheduler::Recommendation wanted = scheduler_->recommendation();
  parts_.metrics.recommended_prefill.set(wanted.prefill);
  parts_.metrics.recommended_decode.set(wanted.decode);
  {
    const std::lock_guard lock(recommendation_mutex_);
    recommendation_ = std::move(wanted);
  }
  int prefill_slots = 0;
  int decode_slots = 0;
  for (WorkerIndex worker = 0; worker < parts_.pool.size(); ++worker) {
    if (!parts_.pool.accepting(worker)) continue;
    const scheduler::WorkerState state = parts_.pool.state(worker);
    if (serves_prefill(state.role) || state.role == Role::kCoupled) prefill_slots += state.slots;
    if (serves_decode(state.role)) decode_slots += state.slots;
  }
  parts_.stages.set_capacity(prefill_slots, decode_slots);
  pump();
}

void Dispatcher::arm_tick() {
  second_timer_.expires_after(kTick);
  second_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || !stopped_.ok()) return;
    tick();
    arm_tick();
  });
}

}  // namespace tandem::router

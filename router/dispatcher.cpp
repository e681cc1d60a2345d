#include "router/dispatcher.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <climits>

#include "common/log.h"
#include "common/random.h"

namespace tandem::router {

using scheduler::Path;
using scheduler::WorkerIndex;

namespace {

constexpr int kTransferTokenBytes = 16;
// How long a worker that failed is avoided by others' requests too: doubling with each failure that
// follows without a success. A worker that fails at once is always the least busy one.
constexpr std::chrono::milliseconds kShunMin{500};
constexpr std::chrono::milliseconds kShunMax{30000};

scheduler::Ticket ticket_of(TransferId transfer) { return transfer.value; }

std::string_view path_name(Path path) {
  switch (path) {
    case Path::kRemote:
      return "remote";
    case Path::kLocal:
      return "local";
    case Path::kPrefillOnly:
      return "prefill_only";
    case Path::kRefuse:
      break;
  }
  return "refused";
}

}  // namespace

// The hand-off record of an attempt: who holds what for it.
struct Dispatcher::Attempt {
  AttemptSpec spec;
  Path path = Path::kRefuse;  // Until dispatched
  WorkerKey prefill;
  WorkerKey decode;
  bool dispatched = false;
  bool prompt_done = false;
  bool joined = false;  // The decode worker has all it needs: the prefill worker no longer matters
  std::vector<bool> done;  // Per choice
  int open = 0;            // Choices that are not done
  // Tokens that overtook the end of the prefill, which comes over another link. The decode worker
  // cannot be further ahead than that link's delay.
  std::vector<link::TokenEntry> held;
  TimePoint queued_at{};
  TimePoint dispatched_at{};
  TimePoint quiet_until{};  // Phase deadline

  TransferId transfer() const { return spec.leg.transfer; }
  WorkerKey prompt_worker() const { return prefill.index >= 0 ? prefill : decode; }
};

// Events of one frame, gathered per I/O thread: one wake-up of a thread per decode step, not per
// token.
struct Dispatcher::Outbox {
  std::vector<std::pair<boost::asio::io_context*, Mailbox::Batch>> batches;

  void add(const std::shared_ptr<Mailbox>& mailbox, AttemptEvent event) {
    for (auto& [io, batch] : batches) {
      if (io != &mailbox->io()) continue;
      batch.emplace_back(mailbox, std::move(event));
      return;
    }
    batches.emplace_back(&mailbox->io(), Mailbox::Batch{});
    batches.back().second.emplace_back(mailbox, std::move(event));
  }
  ~Outbox() {
    for (auto& [io, batch] : batches) Mailbox::deliver(*io, std::move(batch));
  }
};

Dispatcher::Dispatcher(const Parts& parts)
    : parts_(parts), scheduler_(scheduler::make_scheduler(parts.config)), timer_(parts.io) {}

Dispatcher::~Dispatcher() = default;

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

void Dispatcher::stop(Status reason) {
  boost::asio::post(parts_.io, [this, reason = std::move(reason)] {
    stopped_ = reason;
    while (!attempts_.empty())
      fail(*attempts_.begin()->second, {.status = reason, .retryable = false, .phase = "decode"});
    timer_.cancel();
  });
}

void Dispatcher::take(AttemptSpec spec) {
  auto owned = std::make_unique<Attempt>();
  Attempt& attempt = *owned;
  attempt.spec = std::move(spec);
  attempt.open = attempt.spec.leg.choices;
  attempt.done.resize(static_cast<size_t>(attempt.open));
  attempt.queued_at = parts_.clock.now();
  const TransferId transfer = attempt.transfer();
  attempts_.emplace(transfer, std::move(owned));
  const link::Leg& leg = attempt.spec.leg;
  parts_.timeline.attempt_queued(attempt.spec.timeline, transfer,
                                 static_cast<int>(leg.tokens.size()), attempt.spec.resumed);
  if (!stopped_.ok())
    return fail(attempt, {.status = stopped_, .retryable = false, .phase = "prefill"});

  const int emitted = static_cast<int>(leg.tokens.size()) - leg.prompt_count;
  scheduler::Request& request = attempt.spec.request;
  request.prompt_tokens = static_cast<int>(leg.tokens.size());
  request.max_tokens = leg.max_tokens - emitted;
  request.choices = leg.choices;
  // A stream that has begun and lost its worker goes before those that have not.
  if (attempt.spec.resumed) request.priority = INT_MIN;
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
    if (decisions.empty()) break;
    for (const scheduler::Decision& decision : decisions) decide(decision);
  }
  pumping_ = false;
  count();
  arm();
}

void Dispatcher::decide(const scheduler::Decision& decision) {
  const auto it = attempts_.find(TransferId{decision.ticket});
  if (it == attempts_.end()) {
    // It was given up between the scheduler's decision and now: only its share is left.
    if (decision.path != Path::kRefuse) scheduler_->finished(decision.ticket, -1);
    return;
  }
  Attempt& attempt = *it->second;
  const TimePoint now = parts_.clock.now();
  parts_.metrics.queue_schedule.observe(to_seconds(now - attempt.queued_at));
  if (decision.path == Path::kRefuse) {
    log_debug("event=refused request={} reason={}", attempt.spec.leg.request, decision.reason);
    post_event(attempt, {attempt.transfer(), decision});
    parts_.timeline.attempt_ended(attempt.spec.timeline, attempt.transfer(), decision.reason);
    attempts_.erase(it);
    return;
  }
  attempt.dispatched = true;
  attempt.path = decision.path;
  attempt.prefill = parts_.pool.key(decision.prefill);
  attempt.decode = parts_.pool.key(decision.decode);
  attempt.dispatched_at = now;
  attempt.quiet_until =
      now + parts_.limits.prefill +
      std::chrono::microseconds(static_cast<int64_t>(decision.predicted_ttft_ms * 10'000));
  Dispatched event{.path = decision.path, .reason = decision.reason};
  if (attempt.prefill.index >= 0) event.prefill = parts_.pool.hello(attempt.prefill.index).name;
  if (attempt.decode.index >= 0) event.decode = parts_.pool.hello(attempt.decode.index).name;
  parts_.timeline.attempt_dispatched(
      attempt.spec.timeline, attempt.transfer(),
      {path_name(decision.path), event.prefill, event.decode, decision.reason});
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
  const std::string token = random_bytes(kTransferTokenBytes);
  Status status;
  WorkerKey culprit;
  if (attempt.path != Path::kPrefillOnly) {
    const link::DecodeCommand decode{
        .leg = leg, .local = attempt.path == Path::kLocal, .token = token};
    status = parts_.pool.send(attempt.decode.index, link::FrameKind::kDecode, decode.encode());
    if (find(transfer) == nullptr) return;  // The send lost the worker, and with it the attempt
    if (!status.ok()) culprit = attempt.decode;
  }
  if (status.ok() && attempt.path != Path::kLocal) {
    link::PrefillCommand prefill{.leg = leg, .token = token};
    if (attempt.path == Path::kRemote) {
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

void Dispatcher::worker_up(WorkerIndex worker) {
  scheduler_->worker_joined(worker, parts_.pool.state(worker));
  pump();
}

void Dispatcher::worker_changed(WorkerIndex worker) {
  scheduler_->worker_updated(worker, parts_.pool.state(worker));
  pump();
}

void Dispatcher::worker_down(WorkerIndex worker, const Status& why) {
  scheduler_->worker_left(worker);
  shunned_.erase(worker);
  std::vector<TransferId> lost;
  for (const auto& [transfer, attempt] : attempts_) {
    if (!attempt->dispatched) continue;
    const bool decode_lost = attempt->decode.index == worker;
    // Once the prompt is computed only the decode worker can tell whether all of it arrived.
    const bool prefill_lost = attempt->prefill.index == worker && !attempt->prompt_done;
    if (decode_lost || prefill_lost) lost.push_back(transfer);
  }
  for (const TransferId transfer : lost) {
    Attempt* attempt = find(transfer);
    if (attempt == nullptr) continue;
    const std::string phase = attempt->prompt_done ? "decode" : "prefill";
    fail(*attempt,
         {.status = Status(ErrorCode::kUnavailable, "a worker was lost: " + why.message()),
          .phase = phase});
  }
  pump();
}

void Dispatcher::worker_frame(WorkerIndex worker, link::FrameKind kind, std::string_view body) {
  const auto handle = [&](auto decoded, auto handler) {
    if (!decoded.ok()) return parts_.pool.close(worker, decoded.status());
    (this->*handler)(worker, std::move(*decoded));
  };
  switch (kind) {
    case link::FrameKind::kTokens:
      return handle(link::Tokens::decode(body), &Dispatcher::tokens);
    case link::FrameKind::kPrefillDone:
      return handle(link::PrefillDone::decode(body), &Dispatcher::prompt_done);
    case link::FrameKind::kLegFailed:
      return handle(link::LegFailed::decode(body), &Dispatcher::leg_failed);
    case link::FrameKind::kLegEvent:
      return handle(link::LegEvent::decode(body), &Dispatcher::leg_event);
    default:
      return parts_.pool.close(worker,
                               Status(ErrorCode::kInvalidArgument, "unexpected frame kind"));
  }
}

void Dispatcher::prompt_done(WorkerIndex worker, link::PrefillDone done) {
  Attempt* attempt = find(done.transfer);
  if (attempt == nullptr || attempt->prompt_worker().index != worker || attempt->prompt_done)
    return;
  const bool from_tokens = attempt->path == Path::kLocal && done.first.empty();
  const auto outside = [&](const SampledToken& sampled) {
    return sampled.token < 0 || sampled.token >= parts_.vocab;
  };
  if ((!from_tokens && done.first.size() != attempt->done.size()) ||
      std::any_of(done.first.begin(), done.first.end(), outside)) {
    return fail(*attempt,
                {.status = Status(ErrorCode::kInternal, "a worker's first tokens are not valid"),
                 .phase = "prefill",
                 .culprits = {attempt->prompt_worker()}});
  }
  const TimePoint now = parts_.clock.now();
  attempt->prompt_done = true;
  attempt->quiet_until = now + parts_.limits.decode;
  parts_.metrics.queue_prefill.observe(to_seconds(now - attempt->dispatched_at));
  parts_.timeline.attempt_prefilled(attempt->spec.timeline, done);
  scheduler_->prefill_finished(ticket_of(done.transfer));
  if (attempt->path != Path::kRemote) shunned_.erase(worker);  // Else when the decode worker has it

  const TransferId transfer = done.transfer;
  const bool ends_here = attempt->path == Path::kPrefillOnly;
  std::vector<bool> ended(attempt->done.size());
  for (size_t choice = 0; choice < done.first.size(); ++choice)
    ended[choice] = ends_here || done.first[choice].finish != FinishReason::kNone;
  {
    Outbox outbox;
    outbox.add(attempt->spec.mailbox,
               {transfer, PromptDone{std::move(done.first), done.cached_tokens}});
    std::vector<link::TokenEntry> held = std::move(attempt->held);
    attempt->held.clear();
    for (size_t choice = 0; choice < ended.size() && attempt != nullptr; ++choice) {
      if (ended[choice]) close_choice(*attempt, static_cast<int>(choice));
      attempt = find(transfer);
    }
    for (link::TokenEntry& entry : held) {
      if (attempt == nullptr || !token(*attempt, std::move(entry), outbox)) break;
      attempt = find(transfer);
    }
  }
  pump();
}

void Dispatcher::tokens(WorkerIndex worker, link::Tokens frame) {
  Outbox outbox;
  bool valid = true;
  for (link::TokenEntry& entry : frame.entries) {
    Attempt* attempt = find(entry.transfer);
    if (attempt == nullptr || attempt->decode.index != worker) continue;
    valid &= token(*attempt, std::move(entry), outbox);
  }
  if (!valid)
    parts_.pool.close(worker, Status(ErrorCode::kInvalidArgument, "a token frame is not valid"));
}

bool Dispatcher::token(Attempt& attempt, link::TokenEntry entry, Outbox& outbox) {
  const auto choice = static_cast<size_t>(entry.choice);
  if (entry.choice < 0 || choice >= attempt.done.size() || entry.sampled.token < 0 ||
      entry.sampled.token >= parts_.vocab)
    return false;
  if (attempt.path == Path::kRemote && !attempt.prompt_done) {
    // More than the request may generate is no overtaking.
    const auto held_max = static_cast<size_t>(attempt.spec.leg.max_tokens) * attempt.done.size();
    if (attempt.held.size() >= held_max) return false;
    attempt.held.push_back(std::move(entry));
    return true;
  }
  if (attempt.done[choice]) return true;  // Cancelled, and the worker has not heard of it yet
  if (attempt.path == Path::kLocal && !attempt.prompt_done) {
    attempt.prompt_done = true;
    scheduler_->prefill_finished(ticket_of(attempt.transfer()));
  }
  attempt.joined = true;
  attempt.quiet_until = parts_.clock.now() + parts_.limits.decode;
  const bool finished = entry.sampled.finish != FinishReason::kNone;
  outbox.add(attempt.spec.mailbox,
             {attempt.transfer(), TokenArrived{entry.choice, std::move(entry.sampled)}});
  if (finished) close_choice(attempt, entry.choice);
  return true;
}

void Dispatcher::leg_failed(WorkerIndex worker, const link::LegFailed& failed) {
  Attempt* attempt = find(failed.transfer);
  if (attempt == nullptr) return;
  const bool from_prefill = attempt->prefill.index == worker;
  const bool from_decode = attempt->decode.index == worker;
  if (!from_prefill && !from_decode) return;
  // What the prefill worker says after the hand-over changes nothing.
  if (from_prefill && !from_decode && attempt->joined) return;
  AttemptFailed failure{
      .status = Status(failed.code == ErrorCode::kOk ? ErrorCode::kInternal : failed.code,
                       failed.message)};
  failure.retryable = failed.retryable;
  failure.phase = attempt->prompt_done ? "decode" : "prefill";
  failure.culprits.push_back(from_prefill ? attempt->prefill : attempt->decode);
  // A transfer that failed may be either end's fault, whoever noticed first. Want of room is not.
  const bool room = failed.code == ErrorCode::kResourceExhausted;
  if (attempt->path == Path::kRemote && !attempt->joined && !room)
    failure.culprits = {attempt->prefill, attempt->decode};
  if (failed.retryable && !room)
    for (const WorkerKey& culprit : failure.culprits) shun(culprit.index);
  log_warn("event=leg_failed request={} worker={} code={} retryable={} reason={}",
           attempt->spec.leg.request, tandem::quoted(parts_.pool.hello(worker).name),
           error_code_name(failed.code), failed.retryable, tandem::quoted(failed.message));
  const std::string reason = "the other leg failed: " + failed.message;
  cancel_legs(*attempt, reason, worker);
  // The failed leg is over; cancel_legs() told the other one.
  post_event(*attempt, {attempt->transfer(), std::move(failure)});
  end(failed.transfer, error_code_name(failed.code));
}

void Dispatcher::shun(WorkerIndex worker) {
  Shun& shun = shunned_[worker];
  shun.pause = std::clamp<Duration>(shun.pause * 2, kShunMin, kShunMax);
  shun.until = parts_.clock.now() + shun.pause;
}

void Dispatcher::leg_event(WorkerIndex worker, link::LegEvent event) {
  if (Attempt* attempt = find(event.transfer); attempt != nullptr) {
    if (event.name == "joined" && attempt->decode.index == worker) {
      attempt->joined = true;
      shunned_.erase(attempt->prefill.index);
      shunned_.erase(worker);
      attempt->quiet_until = parts_.clock.now() + parts_.limits.decode;
      if (!attempt->prompt_done) attempt->quiet_until += parts_.limits.prefill;
    }
  }
  parts_.timeline.worker_event(event);
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
                             !(attempt.prompt_done && attempt.path == Path::kPrefillOnly);
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
  parts_.timeline.attempt_ended(it->second->spec.timeline, transfer, outcome);
  if (it->second->dispatched)
    scheduler_->finished(ticket_of(transfer), -1);
  else
    scheduler_->withdraw(ticket_of(transfer));
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
  if (!attempts_.empty()) next = std::min(next, parts_.clock.now() + parts_.limits.sweep);
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

}  // namespace tandem::router

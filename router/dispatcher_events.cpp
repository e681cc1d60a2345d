// What workers say, and what it means for attempts.
#include <algorithm>

#include "common/log.h"
#include "router/dispatch_record.h"

namespace tandem::router {

using scheduler::Path;
using scheduler::WorkerIndex;

namespace {

// How long a worker that failed is avoided by others' requests too: doubling with each failure that
// follows without a success. A worker that fails at once is always the least busy one.
constexpr std::chrono::milliseconds kShunMin{500};
constexpr std::chrono::milliseconds kShunMax{30000};

scheduler::Ticket ticket_of(TransferId transfer) { return transfer.value; }

}  // namespace

void Dispatcher::worker_up(WorkerIndex worker) {
  scheduler_->worker_joined(worker, parts_.pool.state(worker));
  pump();
}

void Dispatcher::worker_changed(WorkerIndex worker) {
  role_moves_.worker_changed(worker, parts_.clock.now());
  if (!parts_.pool.is_up(worker)) return;
  scheduler_->worker_updated(worker, parts_.pool.state(worker));
  pump();
}

void Dispatcher::worker_measured(WorkerIndex worker, const std::vector<link::StepSample>& samples) {
  for (const link::StepSample& sample : samples)
    scheduler_->observe(worker, {.prompt_first = sample.prompt_first,
                                 .prompt_tokens = sample.prompt_tokens,
                                 .sequences = sample.sequences,
                                 .context_tokens = sample.context_tokens,
                                 .ms = sample.ms});
}

void Dispatcher::worker_down(WorkerIndex worker, const Status& why) {
  role_moves_.worker_down(worker, parts_.clock.now());
  scheduler_->worker_left(worker);
  shunned_.erase(worker);
  std::vector<TransferId> lost;
  for (const auto& [transfer, attempt] : attempts_) {
    if (!attempt->granted) continue;
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
  const bool from_tokens = attempt->path() == Path::kLocal && done.first.empty();
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
  attempt->quiet_until = now + parts_.config.router.decode_quiet;
  parts_.metrics.queue_prefill.observe(to_seconds(now - attempt->dispatched_at));
  parts_.timeline.attempt_prefilled(attempt->spec.timeline, done);
  scheduler_->prefill_finished(ticket_of(done.transfer));
  if (attempt->path() != Path::kPrefillOnly)
    move(*attempt, attempt->remote() ? Stage::kStream : Stage::kDecode);
  for (size_t choice = 0; choice < done.first.size(); ++choice) token_said(*attempt, now);
  if (attempt->path() != Path::kRemote)
    shunned_.erase(worker);  // Else when the decode worker has it

  const TransferId transfer = done.transfer;
  const bool ends_here = attempt->path() == Path::kPrefillOnly;
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

// One more token of one of its choices.
void Dispatcher::token_said(Attempt& attempt, TimePoint now) {
  ++attempt.tokens_out;
  attempt.last_token_at = now;
  if (attempt.first_token_at != TimePoint{}) return;
  attempt.first_token_at = now;
  scheduler_->first_token(ticket_of(attempt.transfer()), now);
  const double measured = to_ms(now - attempt.queued_at);
  parts_.timeline.attempt_first_token(attempt.spec.timeline, attempt.transfer(), measured);
  if (attempt.decision.predicted_ttft_ms <= 0) return;
  parts_.metrics.ttft_predicted(measured / attempt.decision.predicted_ttft_ms,
                                measured <= attempt.decision.predicted_ttft_bound_ms);
}

bool Dispatcher::token(Attempt& attempt, link::TokenEntry entry, Outbox& outbox) {
  const auto choice = static_cast<size_t>(entry.choice);
  if (entry.choice < 0 || choice >= attempt.done.size() || entry.sampled.token < 0 ||
      entry.sampled.token >= parts_.vocab)
    return false;
  if (attempt.path() == Path::kRemote && !attempt.prompt_done) {
    // More than the request may generate is no overtaking.
    const auto held_max = static_cast<size_t>(attempt.spec.leg.max_tokens) * attempt.done.size();
    if (attempt.held.size() >= held_max) return false;
    attempt.held.push_back(std::move(entry));
    return true;
  }
  if (attempt.done[choice]) return true;  // Cancelled, and the worker has not heard of it yet
  if (attempt.path() == Path::kLocal && !attempt.prompt_done) {
    attempt.prompt_done = true;
    scheduler_->prefill_finished(ticket_of(attempt.transfer()));
  }
  const TimePoint now = parts_.clock.now();
  move(attempt, Stage::kDecode);
  token_said(attempt, now);
  attempt.joined = true;
  attempt.quiet_until = now + parts_.config.router.decode_quiet;
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
  // Who changes its role or drains sends away what it cannot end.
  failure.excused =
      failed.code == ErrorCode::kUnavailable && failed.retryable && !parts_.pool.accepting(worker);
  // A transfer that failed may be either end's fault, whoever noticed first. Want of room is not.
  const bool room = failed.code == ErrorCode::kResourceExhausted;
  if (attempt->path() == Path::kRemote && !attempt->joined && !room && !failure.excused)
    failure.culprits = {attempt->prefill, attempt->decode};
  if (failed.retryable && !room && !failure.excused)
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
  Attempt* attempt = find(event.transfer);
  if (attempt != nullptr && attempt->dispatched && attempt->decode.index == worker) {
    if (attempt->remote() && event.name == "kv_last") move(*attempt, Stage::kLand);
    if (attempt->remote() && event.name == "landed") move(*attempt, Stage::kJoin);
    if (event.name == "joined") {
      move(*attempt, Stage::kDecode);
      attempt->joined = true;
      shunned_.erase(attempt->prefill.index);
      shunned_.erase(worker);
      attempt->quiet_until = parts_.clock.now() + parts_.config.router.decode_quiet;
      if (!attempt->prompt_done) attempt->quiet_until += parts_.config.router.prefill_quiet;
    }
  }
  parts_.timeline.worker_event(event);
}

}  // namespace tandem::router

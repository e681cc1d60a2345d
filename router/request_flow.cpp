// The story of a request: admit, tokenise, choose workers, prefill, stream KV, decode, reply. The
// middle three happen on workers, commanded by the dispatcher; here their events become text.
#include "router/request_flow.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/log.h"
#include "common/random.h"
#include "router/run_on.h"

namespace tandem::router {
namespace asio = boost::asio;

namespace {

constexpr std::string_view kEventStream = "text/event-stream; charset=utf-8";
// Prompts of one request that are with the dispatcher at once; a batch of a thousand must not fill
// the queue.
constexpr size_t kAttemptsAtOnce = 64;
// Pauses where workers had no room: as long as it has lasted so far, within these.
constexpr std::chrono::milliseconds kRoomPauseMin{50};
constexpr std::chrono::milliseconds kRoomPauseMax{1000};
// Between two looks for a worker that has come back.
constexpr std::chrono::milliseconds kComebackPause{100};

std::string_view endpoint(openai::Kind kind) {
  return kind == openai::Kind::kChat ? "/v1/chat/completions" : "/v1/completions";
}

}  // namespace

RequestFlow::RequestFlow(Services& services, Exchange& exchange, openai::Kind kind)
    : services_(services),
      exchange_(exchange),
      kind_(kind),
      wakeup_(exchange.io()),
      mailbox_(std::make_shared<Mailbox>(exchange.io(), wakeup_)),
      deadline_(exchange.request().received + services.config.router.request_deadline) {
  exchange_.on_client_gone([mailbox = mailbox_.get()] { mailbox->interrupt(); });
}

RequestFlow::~RequestFlow() {
  exchange_.on_client_gone({});
  mailbox_->close();
  for (const auto& [transfer, attempt] : attempts_)
    services_.dispatcher.cancel(transfer, "the request is over");
  if (receiving_) services_.stages.drop(Stage::kReceived);
  if (!pending_.empty())
    services_.stages.drop(Stage::kTokenised, static_cast<int>(pending_.size()));
  if (counted_) services_.metrics.requests.set(services_.requests.fetch_sub(1) - 1);
  if (!end_noted_) ended("failed", 0);
}

asio::awaitable<void> RequestFlow::run() {
  if (auto error = admit()) co_return co_await report(*error);
  if (auto error = co_await tokenise()) co_return co_await report(*error);
  if (auto error = begin_answer()) co_return co_await report(*error);
  for (;;) {
    const TimePoint now = services_.clock.now();
    if (exchange_.client_gone()) co_return abandon();
    if (now >= deadline_ && !answer_->finished())
      error_ = openai::timed_out("The request took longer than the server allows.");
    if (error_) co_return co_await report(*error_);
    if (answer_->finished()) co_return co_await complete();
    dispatch_pending(now);
    if (!co_await write_frames()) co_return abandon();
    co_await mailbox_->wait(next_wakeup(now));
    const TimePoint arrived = services_.clock.now();
    for (AttemptEvent& event : mailbox_->take()) take_event(std::move(event), arrived);
  }
}

// Is there room, and somebody to serve it? Before anything is parsed.
std::optional<openai::ApiError> RequestFlow::admit() {
  if (services_.draining) {
    refusal_ = "draining";
    return openai::draining();
  }
  const int inside = services_.requests.fetch_add(1) + 1;
  counted_ = true;
  services_.metrics.requests.set(inside);
  if (inside > services_.config.router.requests_max) {
    refusal_ = "requests_max";
    return overloaded("Too many requests are being served. Fullest: " +
                      std::string(stage_reason(services_.stages.fullest())) + ".");
  }
  receiving_ = services_.stages.try_enter(Stage::kReceived);
  if (!receiving_) {
    refusal_ = stage_reason(Stage::kReceived);
    return overloaded("Too many requests wait to be tokenised. Fullest: stage_received.");
  }
  return openai::check_content_type(exchange_.request().content_type);
}

// Parsing, the template and tokenising, beside the I/O threads.
asio::awaitable<std::optional<openai::ApiError>> RequestFlow::tokenise() {
  const TimePoint begin = services_.clock.now();
  const std::string body = std::move(exchange_.request().body);
  const std::function<openai::Parsed<Prepared>()> job = [this, &body] {
    return services_.preparer.completion(body, kind_, exchange_.request().objectives);
  };
  auto prepared = co_await run_on(services_.work_threads, job);
  if (!prepared) {
    refusal_ = stage_reason(Stage::kReceived);
    co_return overloaded("Too many requests wait to be tokenised. Fullest: stage_received.");
  }
  if (!*prepared) co_return prepared->error();
  receiving_ = false;
  services_.stages.serve(Stage::kReceived, services_.clock.now() - begin);
  prepared_ = std::move(**prepared);
  Request& request = exchange_.request();
  if (const Duration own = prepared_->objectives.deadline; own > Duration::zero())
    deadline_ = std::min(deadline_, request.received + own);
  if (!prepared_->request.request_id.empty() && !request.id_given)
    request.id = prepared_->request.request_id;
  timeline_ = services_.timeline.begin(request.id, endpoint(kind_), request.received_us);
  services_.timeline.note(timeline_, "tokenised");
  services_.metrics.timelines.set(static_cast<double>(services_.timeline.size()));
  services_.metrics.queue_tokenise.observe(to_seconds(services_.clock.now() - begin));
  services_.metrics.unknown_fields.add(prepared_->request.ignored_count);
  co_return std::nullopt;
}

// One answer with all its choices, and one attempt per prompt that wants tokens.
std::optional<openai::ApiError> RequestFlow::begin_answer() {
  const openai::CompletionRequest& request = prepared_->request;
  const ModelBuild build = services_.pool.model_build();
  openai::ResponseMeta meta = openai::ResponseMeta::from(
      request, openai::make_id(kind_), exchange_.request().received_us / 1'000'000,
      prepared_->model,
      openai::make_fingerprint(build.build, build.model_digest, build.kv_layout_digest));
  const uint64_t seed = request.seed ? static_cast<uint64_t>(*request.seed) : random_u64();
  answer_.emplace(Answer::Parts{.tokenizer = services_.tokenizer,
                                .metrics = services_.metrics,
                                .prepared = *prepared_,
                                .meta = std::move(meta),
                                .seed = seed,
                                .received = exchange_.request().received});
  const TimePoint now = services_.clock.now();
  last_write_ = now;
  services_.metrics.prompt_tokens.add(static_cast<double>(answer_->usage().prompt_tokens));
  services_.metrics.prompt_tokens_alias.add(static_cast<double>(answer_->usage().prompt_tokens));
  std::vector<Pending> pending;
  for (int prompt = 0; prompt < static_cast<int>(prepared_->prompts.size()); ++prompt) {
    if (prepared_->prompts[static_cast<size_t>(prompt)].max_tokens == 0) {
      answer_->finish_empty(prompt);
      continue;
    }
    Attempt attempt{.prompt = prompt};
    for (int i = 0; i < request.n; ++i) attempt.choices.push_back(prompt * request.n + i);
    pending.push_back({std::move(attempt), now, {}});
  }
  if (!services_.stages.try_enter(Stage::kTokenised, static_cast<int>(pending.size()))) {
    refusal_ = stage_reason(Stage::kTokenised);
    return overloaded("Too many prompts wait. Fullest: stage_tokenised.");
  }
  pending_ = std::move(pending);
  return std::nullopt;
}

void RequestFlow::dispatch_pending(TimePoint now) {
  for (auto it = pending_.begin(); it != pending_.end() && attempts_.size() < kAttemptsAtOnce;) {
    if (it->not_before > now) {
      ++it;
      continue;
    }
    Attempt attempt = std::move(it->attempt);
    services_.stages.serve(Stage::kTokenised, now - it->since);
    it = pending_.erase(it);
    submit(std::move(attempt));
  }
}

// Prompt, and what its choice has said before a loss; the workers continue from there.
void RequestFlow::submit(Attempt attempt) {
  const openai::CompletionRequest& request = prepared_->request;
  const Prompt& prompt = prepared_->prompts[static_cast<size_t>(attempt.prompt)];
  AttemptSpec spec{.mailbox = mailbox_};
  link::Leg& leg = spec.leg;
  do leg.transfer = TransferId{random_u64()};
  while (leg.transfer.value == 0);
  leg.request = exchange_.request().id;
  leg.tokens = prompt.tokens;
  leg.prompt_count = static_cast<int>(prompt.tokens.size());
  leg.choices = static_cast<int>(attempt.choices.size());
  for (const int choice : attempt.choices) leg.seeds.push_back(answer_->choice(choice).seed);
  if (attempt.choices.size() == 1) {
    const std::vector<TokenId>& emitted = answer_->choice(attempt.choices.front()).emitted;
    leg.tokens.insert(leg.tokens.end(), emitted.begin(), emitted.end());
    if (!emitted.empty()) spec.generation = generation_;
  }
  leg.sampling = request.sampling;
  leg.max_tokens = prompt.max_tokens;
  const Objectives& asked = prepared_->objectives;
  spec.request.tenant = asked.tenant;
  spec.request.priority = asked.priority;
  spec.request.ttft_slo = asked.ttft_slo;
  spec.request.tpot_slo = asked.tpot_slo;
  spec.request.refuse_on_miss = asked.refuse_on_miss;
  spec.request.session = asked.session;
  spec.request.blocks = prompt.blocks;
  spec.request.fingerprint = prompt.fingerprint;
  spec.request.deadline = deadline_;
  spec.resumed = attempt.resumed;
  spec.avoid = attempt.avoid;
  spec.timeline = timeline_;
  attempts_.emplace(leg.transfer, std::move(attempt));
  services_.dispatcher.submit(std::move(spec));
}

void RequestFlow::take_event(AttemptEvent event, TimePoint now) {
  const auto it = attempts_.find(event.attempt);
  if (it == attempts_.end()) return;  // Of an attempt that was given up
  if (const auto* dispatched = std::get_if<Dispatched>(&event.what)) {
    if (!answer_->any_token()) generation_ = dispatched->generation;
    // The header tells of the attempt whose first token it goes out with.
    if (headers_sent_ || it->second.prompt != 0) return;
    const bool remote = dispatched->path == scheduler::Path::kRemote;
    decision_ = remote                       ? "path=remote"
                : dispatched->decode.empty() ? "path=prefill_only"
                                             : "path=local";
    if (!dispatched->prefill.empty()) decision_ += " prefill=" + dispatched->prefill;
    if (!dispatched->decode.empty()) decision_ += " decode=" + dispatched->decode;
    decision_ += " cached=? reason=" + dispatched->reason;
    decision_ += fmt::format(" predicted_ttft_ms={:.1f}", dispatched->predicted_ttft_ms);
  } else if (auto* done = std::get_if<PromptDone>(&event.what)) {
    took_prompt(Attempt(it->second), event.attempt, std::move(*done), now);
  } else if (auto* token = std::get_if<TokenArrived>(&event.what)) {
    took_token(it->second, event.attempt, token->choice, token->sampled, now);
  } else {
    const Attempt attempt = std::move(it->second);
    attempts_.erase(it);
    if (auto* failed = std::get_if<AttemptFailed>(&event.what))
      took_failure(attempt, *failed, now);
    else
      took_refusal(attempt, std::get<Refused>(event.what), now);
  }
}

void RequestFlow::took_prompt(const Attempt& attempt, TransferId transfer, PromptDone done,
                              TimePoint now) {
  answer_->took_prompt(attempt.prompt, done.cached_tokens);
  for (size_t i = 0; i < done.first.size(); ++i)
    took_token(attempt, transfer, static_cast<int>(i), done.first[i], now);
}

void RequestFlow::took_token(const Attempt& attempt, TransferId transfer, int choice,
                             const SampledToken& sampled, TimePoint now) {
  const int index = attempt.choices[static_cast<size_t>(choice)];
  if (answer_->finished(index)) return;
  if (!answer_->any_token()) services_.timeline.note(timeline_, "first_token");
  if (const Attempt* known = &attempt; known->resumed && !known->lost_in.empty()) {
    services_.metrics.request_recovered(known->lost_in);
    if (const auto it = attempts_.find(transfer); it != attempts_.end()) it->second.lost_in.clear();
  }
  answer_->push(index, sampled, now);
  if (!answer_->finished(index)) return;
  if (answer_->choice(index).assembler.ended_by_text())
    services_.dispatcher.cancel_choice(transfer, choice);
  const auto done = [&](int other) { return answer_->finished(other); };
  const std::vector<int> choices = attempt.choices;
  if (!std::all_of(choices.begin(), choices.end(), done)) return;
  // The dispatcher usually knows already: then this cancels nothing.
  services_.dispatcher.cancel(transfer, "all choices are finished");
  attempts_.erase(transfer);
}

void RequestFlow::took_failure(const Attempt& attempt, const AttemptFailed& failure,
                               TimePoint now) {
  if (!failure.retryable) {
    error_ = openai::from_status(failure.status);
    return;
  }
  std::vector<int> open;
  bool fresh = true;  // Nothing was said yet: the choices can still share one prefill
  for (const int index : attempt.choices) {
    if (answer_->finished(index)) continue;
    open.push_back(index);
    fresh &= answer_->choice(index).emitted.empty();
  }
  if (fresh) return retry(attempt, std::move(open), failure, now);
  for (const int index : open) retry(attempt, {index}, failure, now);
}

// Losses are counted. Want of room and a worker's change of role are none, and are waited for as
// long as a queue may take.
void RequestFlow::retry(const Attempt& lost, std::vector<int> choices, const AttemptFailed& failure,
                        TimePoint now) {
  if (choices.empty()) return;
  const SchedulerConfig& limits = services_.config.scheduler;
  const bool room = failure.status.code() == ErrorCode::kResourceExhausted || failure.excused;
  Attempt attempt{.prompt = lost.prompt, .choices = std::move(choices), .resumed = true};
  attempt.lost_in = failure.phase;
  Duration pause = Duration::zero();
  if (room) {
    attempt.refused_since = lost.refused_since == TimePoint{} ? now : lost.refused_since;
    const Duration refused_for = now - attempt.refused_since;
    if (refused_for >= limits.queue_deadline) {
      error_ = overloaded("The workers have had no room for too long. Fullest: " +
                          std::string(stage_reason(services_.stages.fullest())) + ".");
      refusal_ = "no_room";
      return;
    }
    pause = std::clamp<Duration>(refused_for, kRoomPauseMin, kRoomPauseMax);
  } else {
    int tries = 0;
    for (const int index : attempt.choices) tries = std::max(tries, ++answer_->choice(index).tries);
    if (tries > limits.retries_max) {
      // Whatever the last worker said of itself, to the client it is one thing.
      error_ = failure.status.code() == ErrorCode::kDeadlineExceeded ? openai::timed_out()
                                                                     : openai::worker_lost();
      return;
    }
    attempt.avoid = lost.avoid;
  }
  attempt.avoid.insert(attempt.avoid.end(), failure.culprits.begin(), failure.culprits.end());
  log_info("event=resume request={} phase={} reason={}", exchange_.request().id, failure.phase,
           tandem::quoted(failure.status.message()));
  wait_again(std::move(attempt), now, pause);
}

void RequestFlow::wait_again(Attempt attempt, TimePoint now, Duration pause) {
  services_.stages.enter(Stage::kTokenised);
  pending_.push_back({std::move(attempt), now, now + pause});
}

// A new request learns at once that it cannot be served, and when to come back. One that has begun
// waits for room, or for a lost worker to return, as long as a queue may take.
void RequestFlow::took_refusal(const Attempt& attempt, const Refused& refused, TimePoint now) {
  const scheduler::Decision& decision = refused.decision;
  const bool alone = decision.code == ErrorCode::kUnavailable;
  if (attempt.resumed && (alone || decision.code == ErrorCode::kResourceExhausted)) {
    Attempt again = attempt;
    if (again.alone_since == TimePoint{}) again.alone_since = now;
    if ((!alone || services_.pool.may_return()) &&
        now - again.alone_since < services_.config.scheduler.queue_deadline)
      return wait_again(std::move(again), now, kComebackPause);
  }
  if (attempt.resumed && alone) {
    error_ = openai::worker_lost("A worker was lost and no other one is there to continue.");
    return;
  }
  if (decision.code == ErrorCode::kInvalidArgument && decision.reason != "too_large") {
    refusal_ = "slo_impossible";
    error_ = openai::invalid_value(
        decision.reason.starts_with("tpot") ? "x-slo-tpot-ms" : "x-slo-ttft-ms", decision.reason);
    return;
  }
  const bool waited = decision.reason == "queue_full" || decision.reason == "queue_deadline";
  refusal_ = waited ? std::string(refused.stage) : decision.reason;
  error_ = openai::refused(decision.code, decision.retry_after_seconds, refused.stage);
}

openai::ApiError RequestFlow::overloaded(std::string_view message) const {
  return openai::overloaded(services_.dispatcher.retry_after_seconds(), std::string(message));
}

TimePoint RequestFlow::next_wakeup(TimePoint now) const {
  TimePoint next = deadline_;
  if (headers_sent_) next = std::min(next, last_write_ + services_.config.router.keepalive);
  if (attempts_.size() < kAttemptsAtOnce)
    for (const Pending& pending : pending_)
      next = std::min(next, std::max(now, pending.not_before));
  return next;
}

Headers RequestFlow::decision_headers() const {
  Headers headers;
  if (decision_.empty()) return headers;
  std::string decision = decision_;
  const std::string cached = std::to_string(std::max(0, answer_->cached_tokens(0)));
  decision.replace(decision.find('?'), 1, cached);
  headers.emplace_back("X-Tandem-Decision", std::move(decision));
  return headers;
}

// Everything that has become text since the last write, in one write. While one waits for a slow
// client, tokens gather in the mailbox, which holds at most what the request may generate.
asio::awaitable<bool> RequestFlow::write_frames() {
  if (!answer_->streaming()) co_return true;
  std::string frames = answer_->take_frames();
  const TimePoint now = services_.clock.now();
  if (frames.empty()) {
    if (!headers_sent_ || now < last_write_ + services_.config.router.keepalive) co_return true;
    frames = openai::StreamRenderer::keep_alive();
  }
  if (!headers_sent_) {
    Headers headers = decision_headers();
    headers.emplace_back("Cache-Control", "no-cache");
    headers.emplace_back("X-Accel-Buffering", "no");
    exchange_.start_stream(kEventStream, headers);
    headers_sent_ = true;
  }
  last_write_ = now;
  services_.stages.enter(Stage::kWrite);
  const bool written = co_await exchange_.write(frames);
  services_.stages.serve(Stage::kWrite, services_.clock.now() - now);
  co_return written;
}

asio::awaitable<void> RequestFlow::complete() {
  services_.timeline.note_last(timeline_, "last_token");
  services_.metrics.e2e.observe(to_seconds(services_.clock.now() - exchange_.request().received));
  // Noted before the last byte, so that a client that has it finds the end in the timeline.
  ended("ok", 200);
  if (!answer_->streaming()) {
    Response response{.body = answer_->body(), .headers = decision_headers()};
    co_await exchange_.respond(std::move(response));
    co_return;
  }
  if (!headers_sent_) {
    Headers headers = decision_headers();
    headers.emplace_back("Cache-Control", "no-cache");
    headers.emplace_back("X-Accel-Buffering", "no");
    exchange_.start_stream(kEventStream, headers);
  }
  co_await exchange_.finish_stream(answer_->last_frames(), true);
}

// The request cannot be answered: as JSON while nothing is out, else as the stream's last frame.
asio::awaitable<void> RequestFlow::report(openai::ApiError error) {
  if (!refusal_.empty()) services_.metrics.request_refused(refusal_);
  ended(!refusal_.empty() ? "refused" : error.status < 500 ? "invalid" : "failed", error.status);
  if (headers_sent_)
    co_await exchange_.finish_stream(answer_->error_frames(error), false);
  else
    co_await exchange_.respond(error_response(error));
}

void RequestFlow::abandon() { ended("client_closed", 499); }

void RequestFlow::ended(std::string_view outcome, int status) {
  end_noted_ = true;
  services_.metrics.request_ended(outcome);
  if (timeline_ == 0) return;
  if (answer_)
    services_.timeline.tokens(timeline_, answer_->usage().prompt_tokens,
                              answer_->usage().completion_tokens);
  services_.timeline.end(timeline_, outcome, status);
}

}  // namespace tandem::router

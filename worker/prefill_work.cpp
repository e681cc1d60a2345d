#include "worker/prefill_work.h"

#include <algorithm>

#include "common/log.h"

namespace tandem::worker {
namespace {

// Hands each layer's rows to the stream while the next layer computes.
class RowPusher final : public KvObserver {
 public:
  RowPusher(transfer::OutgoingStream& stream, transfer::Sender& sender)
      : stream_(stream), sender_(sender) {}
  void on_layer(const LayerRows& rows) override {
    stream_.push(rows);
    sender_.progress();
  }

 private:
  transfer::OutgoingStream& stream_;
  transfer::Sender& sender_;
};

}  // namespace

int64_t PrefillWork::PrefillLeg::uncomputed() const {
  if (state == State::kTail || state == State::kAborting || state == State::kStopped) return 0;
  const auto all = static_cast<int64_t>(leg().tokens.size());
  return next_chunk < grid.size() ? all - grid[next_chunk].first : all;
}

PrefillWork::PrefillWork(const WorkContext& context, transfer::Sender* sender,
                         PrefillFailed on_failed)
    : context_(context), sender_(sender), on_failed_(std::move(on_failed)) {}

// ---- Messages ----

Status PrefillWork::admit(const PrefillArrived& message) const {
  const link::PrefillCommand& command = message.command;
  if (draining_) return {ErrorCode::kUnavailable, "the worker drains"};
  // One choice at a time is sampled here: only decode slots bound their number.
  link::Leg leg = command.leg;
  leg.choices = 1;
  TANDEM_RETURN_IF_ERROR(check_leg(leg, context_.engine.model(), context_.engine.sequences_max()));
  const auto limit = static_cast<size_t>(context_.config.transfer.streams_max);
  if (legs_.size() >= limit) {
    return {ErrorCode::kResourceExhausted,
            "all " + std::to_string(limit) + " legs (transfer.streams_max) are taken"};
  }
  const bool known = std::any_of(legs_.begin(), legs_.end(), [&](const PrefillLeg& other) {
    return other.leg().transfer == command.leg.transfer;
  });
  if (known) return {ErrorCode::kInvalidArgument, "a leg with this transfer id is here already"};
  return {};
}

void PrefillWork::on_prefill(PrefillArrived message) {
  if (Status status = admit(message); !status.ok()) {
    return tell_failed(*message.session, message.command.leg, status);
  }
  PrefillLeg& leg = legs_.emplace_back();
  leg.router = std::move(message.session);
  leg.command = std::move(message.command);
  leg.deadline =
      leg_deadline(leg.leg(), context_.clock.now(), context_.config.router.request_deadline);
  send_event(*leg.router, leg.leg().transfer, "accepted");
}

void PrefillWork::on_decode(DecodeArrived message) {
  send_failed(*message.session, message.command.leg, context_.name,
              {ErrorCode::kFailedPrecondition, "this worker's role is prefill"});
}

void PrefillWork::tell_failed(link::Session& router, const link::Leg& leg,
                              const Status& reason) const {
  send_failed(router, leg, context_.name, reason);
  if (on_failed_) on_failed_(leg.transfer, reason);
}

PrefillWork::Legs::iterator PrefillWork::find(TransferId transfer) {
  return std::find_if(legs_.begin(), legs_.end(),
                      [&](const PrefillLeg& leg) { return leg.leg().transfer == transfer; });
}

void PrefillWork::on_cancel(const CancelArrived& message) {
  const auto leg = find(message.command.transfer);
  // One choice's end does not concern the prompt that all share.
  if (leg == legs_.end() || leg->router.get() != message.session || message.command.choice >= 0) {
    return;
  }
  fail(leg, {ErrorCode::kCancelled, message.command.reason}, false);
}

void PrefillWork::on_router_gone(const link::Session* router) {
  for (auto leg = legs_.begin(); leg != legs_.end();) {
    const auto next = std::next(leg);
    if (leg->router.get() == router) {
      fail(leg, {ErrorCode::kCancelled, "the router is gone"}, false);
    }
    leg = next;
  }
}

void PrefillWork::end_all(const Status& reason) {
  for (auto leg = legs_.begin(); leg != legs_.end();) {
    const auto next = std::next(leg);
    fail(leg, reason, leg->state != State::kTail);
    leg = next;
  }
}

void PrefillWork::on_transfer(TransferChanged message) {
  const auto leg = find(message.transfer);
  if (leg == legs_.end()) return;
  switch (message.kind) {
    case TransferChanged::Kind::kGranted:
      send_event(*leg->router, message.transfer, "granted");
      if (leg->state == State::kOpening) leg->state = State::kReady;
      return;
    case TransferChanged::Kind::kSealed:
      return;  // Incoming transfers only.
    case TransferChanged::Kind::kDone:
      leg->stream.reset();
      return release(leg);
    case TransferChanged::Kind::kFailed:
      leg->stream.reset();
      context_.report.count_transfer_failure(message.status.code());
      // After PrefillDone the decode worker speaks for the transfer, and when aborting nobody asks.
      return fail(leg, transfer_failure(message.status),
                  leg->state != State::kTail && leg->state != State::kAborting);
  }
}

// ---- Work ----

void PrefillWork::activate_queued() {
  for (auto leg = legs_.begin(); leg != legs_.end();) {
    const auto here = leg++;
    if (here->state != State::kQueued) continue;
    const auto sequence = context_.engine.open();
    if (!sequence) return;  // All taken: the leg keeps its place.
    here->sequence = *sequence;
    const link::Leg& wanted = here->leg();
    const ModelInfo& model = context_.engine.model();
    here->grid = chunk_grid(wanted.prompt_count,
                            static_cast<int>(wanted.tokens.size()) - wanted.prompt_count,
                            model.chunk_tokens, model.exact_batch_max);
    if (here->command.decode_listen.empty()) {
      here->state = State::kReady;
    } else {
      open_stream(*here);
    }
  }
}

void PrefillWork::open_stream(PrefillLeg& leg) {
  leg.state = State::kOpening;
  transfer::OpenRequest request;
  request.transfer = leg.leg().transfer;
  request.decode_listen = leg.command.decode_listen;
  request.decode_name = leg.command.decode_name;
  request.decode_epoch = leg.command.decode_epoch;
  request.token = leg.command.token;
  request.tokens = static_cast<int>(leg.leg().tokens.size());
  request.deadline = leg.deadline - context_.clock.now();
  transfer::OutgoingEvents events;
  // Events may come on any thread and after the leg is gone: they carry the id, never the leg.
  const auto post = [inbox = &context_.inbox, transfer = request.transfer](
                        TransferChanged::Kind kind, const Status& status) {
    inbox->push(TransferChanged{transfer, kind, {}, status});
  };
  events.on_granted = [post] { post(TransferChanged::Kind::kGranted, {}); };
  events.on_done = [post] { post(TransferChanged::Kind::kDone, {}); };
  events.on_failed = [post, abort_switch = &context_.abort_switch,
                      transfer = request.transfer](const Status& status) {
    post(TransferChanged::Kind::kFailed, status);
    abort_switch->transfer_failed(transfer);
  };
  leg.stream = sender_->open(request, std::move(events));
}

bool PrefillWork::advance() {
  check_ends(context_.clock.now());
  activate_queued();
  held_until_ = TimePoint{};
  if (const auto leg = choose(); leg != legs_.end()) {
    const TimePoint now = context_.clock.now();
    const TimePoint start = context_.pacer.start_of(leg->grid[leg->next_chunk], now);
    if (start <= now) {
      run_chunk(leg);
    } else {
      held_until_ = start;
    }
  }
  if (sender_) sender_->progress();
  return choose() != legs_.end() && held_until_ == TimePoint{};
}

// The leg that computes, else the first that may start. A leg without a grant holds up nobody
// behind it.
PrefillWork::Legs::iterator PrefillWork::choose() {
  const auto in = [&](State state) {
    return std::find_if(legs_.begin(), legs_.end(),
                        [&](const PrefillLeg& leg) { return leg.state == state; });
  };
  const auto computing = in(State::kComputing);
  return computing != legs_.end() ? computing : in(State::kReady);
}

void PrefillWork::run_chunk(Legs::iterator leg) {
  const Clock& clock = context_.clock;
  const TransferId transfer = leg->leg().transfer;
  if (leg->state == State::kReady) {
    leg->state = State::kComputing;
    leg->started_us = clock.wall_us();
    send_event(*leg->router, transfer, "prefill_start");
  }
  context_.abort_switch.begin(transfer, leg->router.get(), leg->deadline);
  if (!context_.inbox.empty()) return context_.abort_switch.end();
  const Chunk chunk = leg->grid[leg->next_chunk];
  const bool last = leg->next_chunk + 1 == leg->grid.size();
  const auto tokens =
      std::span(leg->leg().tokens)
          .subspan(static_cast<size_t>(chunk.first), static_cast<size_t>(chunk.count));
  std::optional<RowPusher> pusher;
  if (leg->stream) pusher.emplace(*leg->stream, *sender_);
  const TimePoint before = clock.now();
  const Status status = context_.engine.prefill(*leg->sequence, tokens, chunk.first, last,
                                                pusher ? &*pusher : nullptr);
  const Duration busy = clock.now() - before;
  context_.abort_switch.end();
  if (status.code() == ErrorCode::kCancelled) {
    leg->state = State::kStopped;  // The reason is in the inbox, or the deadline has passed.
    return;
  }
  if (!status.ok()) return fail(leg, status.with_context("prefill"), true);
  context_.report.count_prompt(chunk, busy);
  context_.pacer.computed(chunk, busy);
  us_per_token_.add(to_seconds(busy) * 1e6 / chunk.count);
  ++leg->next_chunk;
  if (last) finish_prompt(leg);
}

Result<std::vector<SampledToken>> PrefillWork::sample_first(PrefillLeg& leg) {
  const link::Leg& wanted = leg.leg();
  std::vector<SampledToken> first;
  for (const uint64_t seed : wanted.seeds) {
    SamplingParams params = wanted.sampling;
    params.seed = seed;
    auto sampler = context_.engine.make_sampler(params, wanted.tokens, wanted.prompt_count);
    if (!sampler) return sampler.status();
    auto sampled = context_.engine.sample(*leg.sequence, **sampler);
    if (!sampled) return sampled.status();
    sampled->finish =
        finish_of(*sampled, (*sampler)->emitted(), wanted.max_tokens,
                  static_cast<int>(wanted.tokens.size()), context_.engine.model().context);
    first.push_back(std::move(*sampled));
  }
  return first;
}

void PrefillWork::finish_prompt(Legs::iterator leg) {
  auto first = sample_first(*leg);
  if (!first) return fail(leg, first.status().with_context("sampling"), true);
  link::PrefillDone done;
  done.transfer = leg->leg().transfer;
  done.first = *first;
  done.computed_tokens = static_cast<int>(leg->leg().tokens.size());
  done.kv_bytes = leg->stream ? static_cast<int64_t>(leg->stream->bytes_sent()) : 0;
  done.started_us = leg->started_us;
  done.ended_us = context_.clock.wall_us();
  static_cast<void>(leg->router->send(link::FrameKind::kPrefillDone, done.encode()));
  if (!leg->stream) return release(leg);
  leg->state = State::kTail;
  leg->stream->seal({done.computed_tokens, std::move(*first)});
}

// ---- Ends ----

void PrefillWork::check_ends(TimePoint now) {
  for (auto leg = legs_.begin(); leg != legs_.end();) {
    const auto next = std::next(leg);
    if (leg->state != State::kAborting && now >= leg->deadline) {
      fail(leg, {ErrorCode::kDeadlineExceeded, "the request's deadline has passed"},
           leg->state != State::kTail);
    } else if (leg->state == State::kStopped) {
      fail(leg, {ErrorCode::kInternal, "the prompt was stopped"}, true);
    }
    leg = next;
  }
}

void PrefillWork::fail(Legs::iterator leg, const Status& reason, bool tell) {
  if (tell) tell_failed(*leg->router, leg->leg(), reason);
  if (!leg->stream) return release(leg);
  leg->state = State::kAborting;
  leg->stream->abort(reason);
}

void PrefillWork::release(Legs::iterator leg) {
  if (leg->sequence) context_.engine.close(*leg->sequence);
  send_event(*leg->router, leg->leg().transfer, "released");
  legs_.erase(leg);
}

TimePoint PrefillWork::next_wakeup() const {
  TimePoint wake = held_until_ == TimePoint{} ? TimePoint::max() : held_until_;
  for (const PrefillLeg& leg : legs_) {
    if (leg.state == State::kStopped) return {};
    if (leg.state != State::kAborting) wake = std::min(wake, leg.deadline);
  }
  return wake;
}

void PrefillWork::fill(link::Load& load) const {
  const Engine& engine = context_.engine;
  load.slots = load.slots_free = engine.sequences_max();
  load.kv_tokens_capacity = int64_t{engine.sequences_max()} * engine.model().context;
  for (const PrefillLeg& leg : legs_) {
    load.prefill_backlog_tokens += leg.uncomputed();
    const auto tokens = static_cast<int64_t>(leg.leg().tokens.size());
    if (!leg.sequence) {
      ++load.waiting;
      continue;
    }
    --load.slots_free;
    if (leg.state == State::kOpening || leg.state == State::kReady) {
      ++load.waiting;
      load.kv_tokens_reserved += tokens;
    } else {
      ++load.running;
      load.kv_tokens_used += tokens;
    }
  }
  load.prefill_us_per_token = us_per_token_.value();
}

std::unique_ptr<RoleWork> make_prefill_work(const WorkContext& context, transfer::Sender* sender,
                                            PrefillFailed on_failed) {
  return std::make_unique<PrefillWork>(context, sender, std::move(on_failed));
}

}  // namespace tandem::worker

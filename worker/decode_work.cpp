#include "worker/decode_work.h"

#include <algorithm>

#include "common/log.h"

namespace tandem::worker {
namespace {

// How long rows may be imported between two decode steps, and at a time when nobody decodes.
constexpr Duration kImportWhileRunning = std::chrono::milliseconds(2);
constexpr Duration kImportWhileIdle = std::chrono::milliseconds(10);
// How often a router that does not read is looked at again.
constexpr auto kPausedLook = std::chrono::milliseconds(20);

}  // namespace

DecodeWork::DecodeWork(const WorkContext& context, const Receivers& receivers)
    : context_(context),
      receivers_(receivers),
      prompts_(context_, legs_, [this](DecodeLeg& leg, const Status& why) { fail(leg, why); }),
      batch_(context_, legs_, [this](DecodeLeg& leg, const Status& why) { fail(leg, why); }) {
  for (transfer::Receiver* receiver : {receivers.own, receivers.remote}) {
    if (!receiver) continue;
    imports_.emplace_back(context_, *receiver, legs_,
                          [this](DecodeLeg& leg, const Status& why) { fail(leg, why); });
  }
}

// ---- Messages ----

int DecodeWork::slots_free() const {
  int free = context_.engine.sequences_max();
  for (const DecodeLeg& leg : legs_) free -= leg.slots();
  return free;
}

Status DecodeWork::admit(const link::DecodeCommand& command) {
  if (draining_) return {ErrorCode::kUnavailable, "the worker drains"};
  TANDEM_RETURN_IF_ERROR(
      check_leg(command.leg, context_.engine.model(), context_.engine.sequences_max()));
  if (find_leg(legs_, command.leg.transfer)) {
    return {ErrorCode::kInvalidArgument, "a leg with this transfer id is here already"};
  }
  if (command.leg.choices > slots_free()) {
    return {ErrorCode::kResourceExhausted, std::to_string(slots_free()) + " slots are free, " +
                                               std::to_string(command.leg.choices) + " are needed"};
  }
  if (!command.local && !receivers_.remote) {
    return {ErrorCode::kFailedPrecondition, "a coupled worker takes no transfers"};
  }
  return {};
}

void DecodeWork::on_prefill(PrefillArrived message) {
  send_failed(*message.session, message.command.leg, context_.name,
              {ErrorCode::kFailedPrecondition,
               "this worker's role is " + std::string(role_name(context_.role))});
}

void DecodeWork::on_decode(DecodeArrived message) {
  if (Status status = admit(message.command); !status.ok()) {
    return send_failed(*message.session, message.command.leg, context_.name, status);
  }
  DecodeLeg& leg = legs_.emplace_back();
  leg.router = std::move(message.session);
  leg.command = std::move(message.command);
  leg.deadline =
      leg_deadline(leg.leg(), context_.clock.now(), context_.config.router.request_deadline);
  leg.choices.resize(static_cast<size_t>(leg.leg().choices));
  send_event(*leg.router, leg.leg().transfer, "accepted");
  leg.receiver = leg.command.local ? receivers_.own : receivers_.remote;
  if (!leg.receiver) {
    leg.state = DecodeLeg::State::kPrompt;
  } else if (Status status = expect(leg); !status.ok()) {
    fail(leg, status);
  }
}

Status DecodeWork::expect(DecodeLeg& leg) {
  transfer::Expectation expectation;
  expectation.transfer = leg.leg().transfer;
  expectation.token = leg.command.token;
  expectation.tokens = leg.tokens();
  expectation.deadline = leg.deadline - context_.clock.now();
  // Events may come on any thread and after the leg is gone: they carry the id, never the leg.
  const auto post = [inbox = &context_.inbox, transfer = expectation.transfer](
                        TransferChanged::Kind kind, transfer::SealInfo seal, const Status& status) {
    inbox->push(TransferChanged{transfer, kind, std::move(seal), status});
  };
  transfer::IncomingEvents events;
  events.on_granted = [post] { post(TransferChanged::Kind::kGranted, {}, {}); };
  events.on_landed = [inbox = &context_.inbox] { inbox->note_landed(); };
  events.on_sealed = [post](const transfer::SealInfo& seal) {
    post(TransferChanged::Kind::kSealed, seal, {});
  };
  events.on_failed = [post](const Status& status) {
    post(TransferChanged::Kind::kFailed, {}, status);
  };
  TANDEM_RETURN_IF_ERROR(leg.receiver->expect(expectation, std::move(events)));
  leg.transfer_open = true;
  return {};
}

void DecodeWork::on_cancel(const CancelArrived& message) {
  DecodeLeg* leg = find_leg(legs_, message.command.transfer);
  if (!leg || leg->router.get() != message.session) return;
  const int choice = message.command.choice;
  if (choice >= static_cast<int>(leg->choices.size())) return;
  if (choice >= 0) {
    close_choice(context_.engine, leg->choices[static_cast<size_t>(choice)]);
    if (!leg->all_done()) return;
  }
  release(*leg, {ErrorCode::kCancelled, message.command.reason});
}

void DecodeWork::on_router_gone(const link::Session* router) {
  for (auto leg = legs_.begin(); leg != legs_.end();) {
    DecodeLeg& here = *leg++;
    if (here.router.get() == router) {
      release(here, {ErrorCode::kCancelled, "the router is gone"});
    }
  }
}

void DecodeWork::end_all(const Status& reason) {
  while (!legs_.empty()) fail(legs_.front(), reason);
}

void DecodeWork::on_transfer(TransferChanged message) {
  DecodeLeg* leg = find_leg(legs_, message.transfer);
  if (!leg) return;
  switch (message.kind) {
    case TransferChanged::Kind::kGranted:
      send_event(*leg->router, message.transfer, "granted");
      if (leg->state != DecodeLeg::State::kExpecting) return;
      leg->state = DecodeLeg::State::kReceiving;
      if (Status status = open_choices(context_.engine, *leg); !status.ok()) fail(*leg, status);
      return;
    case TransferChanged::Kind::kSealed:
      leg->seal = std::move(message.seal);
      return;
    case TransferChanged::Kind::kDone:
      return;  // Outgoing transfers only.
    case TransferChanged::Kind::kFailed:
      if (leg->transfer_open) fail(*leg, transfer_failure(message.status));
      return;
  }
}

// ---- Work ----

bool DecodeWork::running() const {
  return std::any_of(legs_.begin(), legs_.end(),
                     [](const DecodeLeg& leg) { return leg.state == DecodeLeg::State::kRunning; });
}

bool DecodeWork::advance() {
  check_ends(context_.clock.now());
  bool more = false;
  const Duration budget = running() ? kImportWhileRunning : kImportWhileIdle;
  for (KvImport& import : imports_) {
    import.receiver().poll();
    if (import.advance(budget)) more = true;
  }
  follow_transfers();
  if (prompts_.advance()) more = true;
  if (batch_.step()) more = true;
  release_done();
  return more;
}

void DecodeWork::follow_transfers() {
  for (auto leg = legs_.begin(); leg != legs_.end();) {
    DecodeLeg& here = *leg++;
    if (here.state != DecodeLeg::State::kReceiving) continue;
    if (Status status = follow(here); !status.ok()) fail(here, status);
  }
}

Status DecodeWork::follow(DecodeLeg& leg) {
  if (leg.told_first && !leg.seal) return {};
  const transfer::IncomingProgress progress = leg.receiver->progress_of(leg.leg().transfer);
  tell_progress(leg, progress);
  if (!leg.seal || !progress.complete || leg.rows() < leg.tokens()) return {};
  return join(leg, progress);
}

// Each once, when it happens: what waits where can be told from them.
void DecodeWork::tell_progress(DecodeLeg& leg, const transfer::IncomingProgress& progress) {
  link::LegEvent event;
  event.transfer = leg.leg().transfer;
  if (progress.first_us != 0 && !std::exchange(leg.told_first, true)) {
    event.name = "kv_first";
    event.at_us = progress.first_us;
    static_cast<void>(leg.router->send(link::FrameKind::kLegEvent, event.encode()));
  }
  if (progress.landed_all && !std::exchange(leg.told_last, true)) {
    event.name = "kv_last";
    event.at_us = progress.last_us;
    event.bytes = static_cast<int64_t>(progress.bytes);
    event.landed = progress.landed;
    static_cast<void>(leg.router->send(link::FrameKind::kLegEvent, event.encode()));
  }
}

Status DecodeWork::join(DecodeLeg& leg, const transfer::IncomingProgress& progress) {
  const TransferId transfer = leg.leg().transfer;
  if (leg.seal->tokens != leg.tokens() || leg.seal->first.size() != leg.choices.size()) {
    return {ErrorCode::kDataLoss, "the seal does not fit the request"};
  }
  const int vocab = context_.engine.model().vocab;
  for (size_t i = 0; i < leg.choices.size(); ++i) {
    const TokenId first = leg.seal->first[i].token;
    if (first < 0 || first >= vocab) return {ErrorCode::kDataLoss, "the seal holds no token"};
    if (!leg.choices[i].done) leg.choices[i].sampler->accept(first);
  }
  send_event(*leg.router, transfer, "landed");
  const TimePoint now = context_.clock.now();
  accept_first(context_.engine, leg, leg.seal->first, now);
  context_.report.count_transfer(progress, now);
  leg.transfer_open = false;
  send_event(*leg.router, transfer, "joined");
  leg.receiver->finish(transfer, {});
  return {};
}

void DecodeWork::release_done() {
  for (auto leg = legs_.begin(); leg != legs_.end();) {
    DecodeLeg& here = *leg++;
    if (here.all_done()) release(here, {});
  }
}

// ---- Ends ----

void DecodeWork::check_ends(TimePoint now) {
  for (auto leg = legs_.begin(); leg != legs_.end();) {
    DecodeLeg& here = *leg++;
    if (now >= here.deadline) {
      fail(here, {ErrorCode::kDeadlineExceeded, "the request's deadline has passed"});
    } else if (here.state == DecodeLeg::State::kStopped) {
      fail(here, {ErrorCode::kInternal, "the prompt was stopped"});
    }
  }
}

void DecodeWork::fail(DecodeLeg& leg, const Status& reason) {
  send_failed(*leg.router, leg.leg(), context_.name, reason);
  release(leg, reason);
}

void DecodeWork::release(DecodeLeg& leg, const Status& outcome) {
  const TransferId transfer = leg.leg().transfer;
  if (leg.transfer_open) {
    const Status reason =
        outcome.ok() ? Status(ErrorCode::kCancelled, "nothing is left to do") : outcome;
    context_.report.count_transfer_failure(reason.code());
    for (KvImport& import : imports_) import.forget(transfer);
    leg.receiver->finish(transfer, reason);
  }
  for (DecodeChoice& choice : leg.choices) close_choice(context_.engine, choice);
  send_event(*leg.router, transfer, "released");
  legs_.remove_if([&](const DecodeLeg& other) { return &other == &leg; });
}

TimePoint DecodeWork::next_wakeup() const {
  TimePoint wake = prompts_.held_until();
  for (const DecodeLeg& leg : legs_) {
    if (leg.state == DecodeLeg::State::kStopped) return {};
    wake = std::min(wake, leg.deadline);
  }
  return batch_.paused() ? std::min(wake, context_.clock.now() + kPausedLook) : wake;
}

void DecodeWork::fill(link::Load& load) const {
  const Engine& engine = context_.engine;
  const int context = engine.model().context;
  load.slots = engine.sequences_max();
  load.slots_free = slots_free();
  load.kv_tokens_capacity = int64_t{engine.sequences_max()} * context;
  for (const DecodeLeg& leg : legs_) {
    const int64_t promise = leg.promise(context);
    const bool joined = leg.state == DecodeLeg::State::kRunning;
    (joined ? load.running : load.waiting) += joined ? leg.slots() : 1;
    if (leg.state == DecodeLeg::State::kPrompt) {
      load.prefill_backlog_tokens +=
          leg.grid.empty() ? leg.tokens() : leg.tokens() - leg.grid[leg.next_chunk].first;
    }
    for (const DecodeChoice& choice : leg.choices) {
      if (choice.done) continue;
      const int64_t used = joined ? choice.position : 0;
      load.kv_tokens_used += used;
      load.kv_tokens_reserved += promise - used;
    }
  }
  load.decode_step_ms = batch_.step_ms();
  load.prefill_us_per_token = prompts_.us_per_token();
}

std::unique_ptr<RoleWork> make_decode_work(const WorkContext& context, const Receivers& receivers) {
  return std::make_unique<DecodeWork>(context, receivers);
}

}  // namespace tandem::worker

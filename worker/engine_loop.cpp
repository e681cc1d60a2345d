#include "worker/engine_loop.h"

#include <algorithm>

#include "common/log.h"

namespace tandem::worker {
namespace {

// While the end of the work is awaited: how often it is looked for, since not everything that ends
// sends a message.
constexpr auto kIdleLook = std::chrono::milliseconds(10);

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace

EngineLoop::EngineLoop(const WorkContext& context, std::unique_ptr<RoleWork> work, Publish publish,
                       TakeRole take_role)
    : context_(context),
      publish_(std::move(publish)),
      take_role_(std::move(take_role)),
      work_(std::move(work)),
      role_(context.role) {
  this->publish();  // A router that connects before run() must not see a worker without slots.
}

bool EngineLoop::idle() const {
  // In this order: what was pushed after `handled` makes the numbers differ.
  const uint64_t handled = handled_.load();
  return idle_.load() && handled == context_.inbox.pushed();
}

TimePoint EngineLoop::next_wakeup() const {
  TimePoint wake = work_->next_wakeup();
  if (stopping_) wake = std::min(wake, stop_by_);
  if (stopping_ || switching_to_) wake = std::min(wake, context_.clock.now() + kIdleLook);
  return wake;
}

void EngineLoop::run() {
  const Clock& clock = context_.clock;
  bool more = false;
  for (;;) {
    auto messages = context_.inbox.take(more ? clock.now() : next_wakeup());
    messages_ += messages.size();
    for (Message& message : messages) handle(std::move(message));
    if (stopping_ && (work_->idle() || clock.now() >= stop_by_)) break;
    if (switching_to_) follow_switch();
    more = work_->advance();
    publish();
  }
  publish();
}

void EngineLoop::handle(Message message) {
  std::visit(Overloaded{[&](PrefillArrived& arrived) { work_->on_prefill(std::move(arrived)); },
                        [&](DecodeArrived& arrived) { work_->on_decode(std::move(arrived)); },
                        [&](CancelArrived& arrived) { work_->on_cancel(arrived); },
                        [&](RouterGone& gone) { work_->on_router_gone(gone.session); },
                        [&](TransferChanged& changed) { work_->on_transfer(std::move(changed)); },
                        [&](DrainChanged& changed) {
                          draining_ = changed.draining;
                          work_->set_draining(draining_ || switching_to_);
                          if (!take_role_) return;  // The other half says it
                          log_info("event={} worker={}", draining_ ? "draining" : "resumed",
                                   context_.name);
                        },
                        [&](LegsEnded& ended) { work_->end_all(ended.reason); },
                        [&](RoleAsked& asked) { ask_role(asked.role); },
                        [&](StopRequested&) {
                          if (std::exchange(stopping_, true)) return;
                          switching_to_.reset();
                          stop_by_ = context_.clock.now() + context_.config.worker.stop_quiesce;
                          draining_ = true;
                          work_->set_draining(true);
                          work_->end_all({ErrorCode::kUnavailable, "the worker stops"});
                        }},
             message);
}

void EngineLoop::ask_role(Role role) {
  role_error_.clear();
  if (role == switching_to_.value_or(role_)) return;
  if (stopping_ || !take_role_) {
    role_error_ = "the worker stops";
  } else if (switching_to_) {
    role_error_ = fmt::format("not {}: the change from {} to {} is under way", role_name(role),
                              role_name(role_), role_name(*switching_to_));
  }
  if (!role_error_.empty()) {
    log_warn("event=role_refused worker={} role={} reason={}", context_.name, role_name(role),
             tandem::quoted(role_error_));
    return;
  }
  switching_to_ = role;
  switch_began_ = context_.clock.now();
  switch_forced_ = false;
  work_->set_draining(true);
  log_info("event=role_switching worker={} from={} to={}", context_.name, role_name(role_),
           role_name(role));
}

void EngineLoop::follow_switch() {
  const TimePoint now = context_.clock.now();
  if (!switch_forced_ && now - switch_began_ >= context_.config.worker.role_drain) {
    switch_forced_ = true;
    work_->end_all({ErrorCode::kUnavailable, "the worker changes its role"});
  }
  if (!work_->idle()) return;
  const Role to = *std::exchange(switching_to_, std::nullopt);
  work_.reset();
  auto work = take_role_(to);
  if (work) {
    log_info("event=role_changed worker={} from={} to={} drain_ms={:.0f} ms={:.0f}", context_.name,
             role_name(role_), role_name(to), to_ms(now - switch_began_),
             to_ms(context_.clock.now() - switch_began_));
    role_ = to;
  } else {
    role_error_ = fmt::format("not {}: {}", role_name(to), work.status().message());
    log_warn("event=role_refused worker={} role={} reason={}", context_.name, role_name(to),
             tandem::quoted(role_error_));
    work = take_role_(role_);
    // What it had a moment ago. Without it only a fresh start helps.
    TANDEM_CHECK(work.ok(), "the former role cannot be had again: " + work.status().message());
  }
  work_ = std::move(*work);
  work_->set_draining(draining_);
}

void EngineLoop::publish() {
  link::Load load;
  load.role = role_;
  load.draining = draining_ || switching_to_;
  if (switching_to_) load.switching_to = role_name(*switching_to_);
  load.role_error = role_error_;
  work_->fill(load);
  idle_.store(work_->idle());
  handled_.store(messages_);
  publish_(load);
}

}  // namespace tandem::worker

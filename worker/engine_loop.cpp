#include "worker/engine_loop.h"

#include "common/log.h"

namespace tandem::worker {
namespace {

constexpr auto kStopDeadline = std::chrono::seconds(2);

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace

EngineLoop::EngineLoop(const WorkContext& context, std::unique_ptr<RoleWork> work)
    : context_(context), work_(std::move(work)) {
  publish();  // A router that connects before run() must not see a worker without slots.
}

void EngineLoop::run() {
  const Clock& clock = context_.clock;
  bool more = false;
  for (;;) {
    const TimePoint wake = more ? clock.now() : work_->next_wakeup();
    auto messages = context_.inbox.take(stopping_ ? std::min(wake, stop_by_) : wake);
    for (Message& message : messages) handle(std::move(message));
    if (stopping_ && (work_->idle() || clock.now() >= stop_by_)) break;
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
                          work_->set_draining(draining_);
                          log_info("event={} worker={}", draining_ ? "draining" : "resumed",
                                   context_.name);
                        },
                        [&](StopRequested&) {
                          if (std::exchange(stopping_, true)) return;
                          stop_by_ = context_.clock.now() + kStopDeadline;
                          draining_ = true;
                          work_->set_draining(true);
                          work_->end_all({ErrorCode::kUnavailable, "the worker stops"});
                        }},
             message);
}

void EngineLoop::publish() {
  link::Load load;
  load.role = context_.role;
  load.draining = draining_;
  work_->fill(load);
  idle_.store(work_->idle());
  context_.report.publish(load);
}

}  // namespace tandem::worker

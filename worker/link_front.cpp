#include "worker/link_front.h"

#include "common/log.h"
#include "worker/leg.h"

namespace tandem::worker {
namespace {

bool is_router(const link::SessionPtr& session) { return session->peer().kind == "router"; }

}  // namespace

LinkFront::LinkFront(const WorkContext& context, const link::Hello& self,
                     const Equipment& equipment)
    : context_(context), self_(self), equipment_(equipment) {}

link::SessionHandlers LinkFront::handlers() {
  link::SessionHandlers handlers;
  handlers.check = [this](const link::Hello& peer) { return check(peer); };
  handlers.on_open = [this](const link::SessionPtr& session) {
    log_info("event=peer_joined worker={} kind={} peer={}", context_.name, session->peer().kind,
             tandem::quoted(session->peer().name));
    if (is_router(session)) context_.report.router_opened(session);
  };
  handlers.on_frame = [this](const link::SessionPtr& session, link::FrameKind kind,
                             std::string_view body) { on_frame(session, kind, body); };
  handlers.on_close = [this](const link::SessionPtr& session, const Status& reason) {
    on_close(session, reason);
  };
  return handlers;
}

// KV rows of another model or layout would be read as valid: such a peer never gets in.
Status LinkFront::check(const link::Hello& peer) const {
  if (peer.kind == "router") return {};
  const auto refuse = [](const std::string& what, const std::string& theirs,
                         const std::string& ours) {
    return Status(ErrorCode::kFailedPrecondition,
                  "another " + what + ": " + theirs + " there, " + ours + " here");
  };
  if (!equipment_.receiver_for(peer)) {
    return {ErrorCode::kFailedPrecondition, "this worker takes no transfers"};
  }
  if (peer.model_digest != self_.model_digest) {
    return refuse("model", peer.model_digest, self_.model_digest);
  }
  if (peer.kv_layout_digest != self_.kv_layout_digest) {
    return refuse("KV layout", peer.kv_layout_digest, self_.kv_layout_digest);
  }
  if (peer.chunk_tokens != self_.chunk_tokens) {
    return refuse("chunk grid", std::to_string(peer.chunk_tokens),
                  std::to_string(self_.chunk_tokens));
  }
  return {};
}

void LinkFront::on_frame(const link::SessionPtr& session, link::FrameKind kind,
                         std::string_view body) {
  if (is_router(session)) return on_router_frame(session, kind, body);
  transfer::Receiver* const receiver = equipment_.receiver_for(session->peer());
  if (kind >= link::FrameKind::kOpen && receiver) {
    return receiver->on_frame(session, kind, body);
  }
  session->close({ErrorCode::kInvalidArgument, "a worker may only transfer"});
}

void LinkFront::on_router_frame(const link::SessionPtr& session, link::FrameKind kind,
                                std::string_view body) {
  switch (kind) {
    case link::FrameKind::kPrefill:
      return take_leg<PrefillArrived, link::PrefillCommand>(session, body);
    case link::FrameKind::kDecode:
      return take_leg<DecodeArrived, link::DecodeCommand>(session, body);
    case link::FrameKind::kCancel:
      return cancel(session, body);
    case link::FrameKind::kControl:
      return control(session, body);
    default:
      return session->close({ErrorCode::kInvalidArgument, "not a frame for a worker"});
  }
}

template <class Arrived, class Command>
void LinkFront::take_leg(const link::SessionPtr& session, std::string_view body) {
  auto command = Command::decode(body);
  if (!command) return session->close(command.status());
  link::Leg name_only;
  name_only.transfer = command->leg.transfer;
  name_only.request = command->leg.request;
  if (context_.inbox.try_push_command(Arrived{session, std::move(*command)})) return;
  send_failed(*session, name_only, context_.name,
              {ErrorCode::kResourceExhausted, "too many commands wait at the worker"});
}

void LinkFront::cancel(const link::SessionPtr& session, std::string_view body) {
  auto command = link::CancelCommand::decode(body);
  if (!command) return session->close(command.status());
  const TransferId transfer = command->transfer;
  const bool whole = command->choice < 0;
  // A lost cancel would leave a leg running for nobody: the router's end cancels all of its legs
  // instead.
  if (!context_.inbox.try_push_command(CancelArrived{session.get(), std::move(*command)})) {
    return session->close({ErrorCode::kResourceExhausted, "too many commands wait at the worker"});
  }
  if (whole) context_.abort_switch.cancelled(transfer, session.get());
}

void LinkFront::control(const link::SessionPtr& session, std::string_view body) {
  const auto command = link::ControlCommand::decode(body);
  if (!command) return session->close(command.status());
  Message message = DrainChanged{command->action == "drain"};
  if (command->action == "role") message = RoleAsked{command->role};
  if (!context_.inbox.try_push_command(std::move(message))) {
    session->close({ErrorCode::kResourceExhausted, "too many commands wait at the worker"});
  }
}

void LinkFront::on_close(const link::SessionPtr& session, const Status& reason) {
  log_info("event=peer_left worker={} kind={} peer={} reason={}", context_.name,
           session->peer().kind, tandem::quoted(session->peer().name),
           tandem::quoted(reason.message()));
  if (!is_router(session)) {
    if (auto* const receiver = equipment_.receiver_for(session->peer())) {
      receiver->on_close(session, reason);
    }
    return;
  }
  context_.report.router_gone(session.get());
  context_.inbox.push(RouterGone{session.get()});
  context_.abort_switch.router_gone(session.get());
}

}  // namespace tandem::worker

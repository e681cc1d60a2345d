#include "router/role_moves.h"

#include "common/log.h"

namespace tandem::router {

using scheduler::WorkerIndex;

Status RoleMoves::ask(const std::string& name, Role to, TimePoint now) {
  const WorkerIndex worker = pool_.find(name);
  if (worker < 0) return Status(ErrorCode::kNotFound, "no worker is named " + tandem::quoted(name));
  if (!pool_.is_up(worker))
    return Status(ErrorCode::kUnavailable, "worker " + name + " is not connected");
  if (moves_.contains(worker))
    return Status(ErrorCode::kFailedPrecondition, "worker " + name +
                                                      " is already on its way to role " +
                                                      std::string(role_name(moves_.at(worker).to)));
  if (pool_.load(worker).role == to) return {};
  TANDEM_RETURN_IF_ERROR(check(worker, to));
  return begin(worker, to, now, false, "asked for");
}

// Would prompts still be computed, and tokens be generated, by somebody who takes requests?
Status RoleMoves::check(WorkerIndex worker, Role to) const {
  bool prefill = serves_prefill(to) || to == Role::kCoupled;
  bool decode = serves_decode(to);
  for (WorkerIndex other = 0; other < pool_.size(); ++other) {
    if (other == worker || !pool_.accepting(other)) continue;
    const Role role = pool_.load(other).role;
    prefill |= serves_prefill(role) || role == Role::kCoupled;
    decode |= serves_decode(role);
  }
  if (prefill && decode) return {};
  return Status(ErrorCode::kFailedPrecondition,
                "worker " + pool_.hello(worker).name + " cannot take role " +
                    std::string(role_name(to)) + ": no worker would be left that " +
                    (prefill ? "generates tokens" : "computes prompts"));
}

Status RoleMoves::begin(WorkerIndex worker, Role to, TimePoint now, bool automatic,
                        const std::string& reason) {
  const Move move{.from = pool_.load(worker).role,
                  .to = to,
                  .begun = now,
                  .automatic = automatic,
                  .error_before = pool_.load(worker).role_error};
  log_info("event=role_move worker={} from={} to={} reason={}",
           tandem::quoted(pool_.hello(worker).name), role_name(move.from), role_name(to),
           tandem::quoted(reason));
  moves_[worker] = move;
  const Status status = pool_.begin_switch(worker, to);
  if (!status.ok()) end(worker, "lost", status.message(), now);
  return status;
}

void RoleMoves::tick(TimePoint now) {
  for (auto it = moves_.begin(); it != moves_.end();) {
    const auto [worker, move] = *it++;
    if (now - move.begun >= deadline_) end(worker, "timeout", "it took too long", now);
  }
  // One at a time, an operator's included: the scheduler must see what the last one has changed.
  for (const scheduler::RoleMove& wish : scheduler_.role_moves(now)) {
    if (!moves_.empty() || !pool_.accepting(wish.worker) || !check(wish.worker, wish.to).ok())
      scheduler_.role_move_failed(wish.worker, now);
    else
      (void)begin(wish.worker, wish.to, now, true, wish.reason);  // A failure is noted in end()
  }
}

void RoleMoves::worker_changed(WorkerIndex worker, TimePoint now) {
  const auto it = moves_.find(worker);
  if (it == moves_.end()) return;
  Move& move = it->second;
  const link::Load& load = pool_.load(worker);
  move.seen |= !load.switching_to.empty();
  if (!load.switching_to.empty()) return;
  if (load.role == move.to) return end(worker, "done", {}, now);
  // An error from before the command says nothing about this move.
  if (!load.role_error.empty() && (move.seen || load.role_error != move.error_before))
    end(worker, "failed", load.role_error, now);
}

void RoleMoves::worker_down(WorkerIndex worker, TimePoint now) {
  if (moves_.contains(worker)) end(worker, "lost", "the worker was lost", now);
}

void RoleMoves::end(WorkerIndex worker, std::string_view outcome, const std::string& reason,
                    TimePoint now) {
  const auto node = moves_.extract(worker);
  if (node.empty()) return;  // A failed send has lost the worker already
  const Move& move = node.mapped();
  metrics_.role_moved(role_name(move.to), outcome);
  log_info("event=role_move_ended worker={} from={} to={} outcome={} ms={:.0f} reason={}",
           tandem::quoted(pool_.hello(worker).name), role_name(move.from), role_name(move.to),
           outcome, to_ms(now - move.begun), tandem::quoted(reason));
  if (move.automatic && outcome != "done") scheduler_.role_move_failed(worker, now);
  pool_.end_switch(worker);
}

}  // namespace tandem::router

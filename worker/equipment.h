// Equipment: what a worker needs to take any role: the engine in the role's size, and the transfer
// objects. They are made when a role first needs them, and kept until the worker ends: peers keep
// their sessions through a change of role, and landing memory its place.
//
// Owned by the Worker. take_role() runs before the engine thread, then on it; receiver_for() on any
// thread. stop() when no work runs any more.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <memory>
#include <vector>

#include "transfer/transport.h"
#include "worker/role_work.h"

namespace tandem::worker {

class Equipment {
 public:
  // `link`, `self` and what `context` refers to outlive this. `self` does not change once links are
  // open.
  Equipment(boost::asio::io_context& io, const link::LinkContext& link, const link::Hello& self,
            const WorkContext& context);
  ~Equipment();

  // The former role's work is gone. On failure the next take_role() of that role succeeds.
  Result<std::unique_ptr<RoleWork>> take_role(Role role);
  // Takes the transfers that `peer` opens; null: none.
  transfer::Receiver* receiver_for(const link::Hello& peer) const;
  // How peers may send to this worker, best first.
  std::vector<std::string> transport_names() const;
  void stop();

 private:
  // The transports of one end: a Sender and a Receiver cannot share them.
  using Transports = std::vector<std::unique_ptr<transfer::Transport>>;

  void need_sender();
  Status need_receiver();
  Status need_own_receiver();
  Result<std::unique_ptr<RoleWork>> make_partitioned(const WorkContext& context);

  boost::asio::io_context& io_;
  const link::LinkContext& link_;
  const link::Hello& self_;
  const WorkContext context_;  // Its role is that of the start
  const std::vector<int> processors_;
  Transports sending_, receiving_, own_;
  std::unique_ptr<transfer::Sender> sender_;
  std::unique_ptr<transfer::Receiver> receiver_, own_receiver_;
  // The same, for threads that did not make them.
  std::atomic<transfer::Receiver*> remote_now_{nullptr}, own_now_{nullptr};
};

}  // namespace tandem::worker

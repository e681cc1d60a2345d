// LinkFront: the worker's side of its link port. Decides who may connect, and turns frames into
// messages for the engine thread or the Receiver.
//
// Owned by the Worker; everything but construction runs on the io_context thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

#include "link/session.h"
#include "worker/equipment.h"

namespace tandem::worker {

class LinkFront {
 public:
  LinkFront(const WorkContext& context, const link::Hello& self, const Equipment& equipment);

  link::SessionHandlers handlers();

 private:
  Status check(const link::Hello& peer) const;
  void on_frame(const link::SessionPtr& session, link::FrameKind kind, std::string_view body);
  void on_router_frame(const link::SessionPtr& session, link::FrameKind kind,
                       std::string_view body);
  void on_close(const link::SessionPtr& session, const Status& reason);

  template <class Arrived, class Command>
  void take_leg(const link::SessionPtr& session, std::string_view body);
  void cancel(const link::SessionPtr& session, std::string_view body);
  void control(const link::SessionPtr& session, std::string_view body);

  const WorkContext context_;
  const link::Hello& self_;
  const Equipment& equipment_;
};

}  // namespace tandem::worker

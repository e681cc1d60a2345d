// AbortSwitch: stops a prompt within a chunk when its reason to run has gone.
//
// The engine thread brackets every chunk with begin() and end(); other threads report what ended.
// Whoever reports must have pushed the matching message to the Inbox before, and the engine thread
// must look at the Inbox after begin(): then no end is missed, whichever thread comes first.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <mutex>

#include "common/clock.h"
#include "engine/engine.h"
#include "link/session.h"

namespace tandem::worker {

class AbortSwitch {
 public:
  AbortSwitch(boost::asio::io_context& io, Engine& engine);
  ~AbortSwitch();

  // Engine thread.
  void begin(TransferId transfer, const link::Session* router, TimePoint deadline);
  void end();

  // Any thread. Each stops the running chunk only if it is about it.
  void cancelled(TransferId transfer, const link::Session* router);
  void transfer_failed(TransferId transfer);
  void router_gone(const link::Session* router);
  void stop();

 private:
  class Watch;

  template <class Condition>
  void abort_if(Condition condition);

  Engine& engine_;
  std::shared_ptr<Watch> watch_;
  std::mutex mutex_;
  bool running_ = false;  // Guarded by mutex_, as all below
  TransferId transfer_{};
  const link::Session* router_ = nullptr;
  uint64_t chunk_ = 0;  // Which begin() this is
};

}  // namespace tandem::worker

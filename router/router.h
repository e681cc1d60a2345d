// Router: composes the front door out of its parts, and starts and stops them in order.
//
// One per process, driven by one thread. start() fails on a bad configuration, a port in use or a
// model that cannot be read, and leaves nothing running. drain() stops taking requests and waits
// for those inside, up to RouterConfig::drain_deadline. stop() ends what is left with an error
// frame, and joins all threads.
#pragma once

#include <memory>
#include <string>

#include "common/config.h"
#include "common/status.h"
#include "router/dispatcher.h"

namespace tandem::router {

class Router {
 public:
  explicit Router(const Config& config);
  ~Router();

  Status start();
  std::string address() const;  // Of the data port
  std::string admin_address() const;
  bool ready() const;  // Enough workers are there
  void drain();
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::router

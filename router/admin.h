// AdminServer: health, metrics and worker control on a port and threads of their own, so that it
// answers while the data path is busy.
//
// Owned by the router. start() and stop() from the owner's thread; stop() joins and is idempotent.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "router/services.h"

namespace tandem::router {

class AdminServer {
 public:
  explicit AdminServer(Services& services);
  ~AdminServer();

  Status start();
  std::string address() const;  // "host:port" actually bound
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::router

// Worker: one worker of any role, which may change: an engine thread (a partitioned one has two)
// and an io_context thread, with everything between them. Several may live in one process.
//
// make_worker() loads the engine and binds the port; start() begins to serve. All methods may be
// called from any one thread that is neither of the worker's own. stop() ends every leg with a
// reason, waits (bounded) until transfers have quiesced, and joins; it is idempotent, and the
// destructor calls it.
#pragma once

#include <memory>
#include <string>

#include "common/config.h"
#include "common/status.h"
#include "common/types.h"

namespace tandem::worker {

class Worker {
 public:
  virtual ~Worker() = default;
  virtual void start() = 0;
  // New legs are refused; those that are here go on.
  virtual void drain() = 0;
  // No leg is here.
  virtual bool idle() const = 0;
  virtual void stop() = 0;

  virtual const std::string& name() const = 0;
  // "host:port" of the link port.
  virtual std::string address() const = 0;
};

// `listen`: host:port, instead of the configuration's.
Result<std::unique_ptr<Worker>> make_worker(Config config, Role role, std::string name,
                                            std::string listen);

}  // namespace tandem::worker

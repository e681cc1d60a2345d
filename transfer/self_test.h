// A short run over a transport before anyone relies on it: proves that bytes and messages arrive
// and how fast, so that a silent slow path (shared memory that fell back to sockets) is seen at
// start, not in production.
#pragma once

#include "transfer/transport.h"

namespace tandem::transfer {

struct SelfTestReport {
  double put_gb_per_s = 0;
  double copy_gb_per_s = 0;  // memcpy of the same blocks: what shared memory could reach
};

// Sends from `source` to `target`, two transports of one kind in this process. Takes milliseconds;
// ends within seconds whatever happens. Replaces both message handlers.
Result<SelfTestReport> self_test(Transport& target, Transport& source);

}  // namespace tandem::transfer

// The transport over UCX: shared memory within a host, RDMA or TCP between hosts. One UCX context
// and one worker per transport, guarded by one mutex that is never held while a callback runs.
//
// Error mode PEER on both sides, with the settings that shared memory needs in it
// (docs/architecture.md); UCX_* variables of the environment win over ours. Built only where CMake
// finds UCX.
#pragma once

#include <memory>

#include "common/status.h"
#include "transfer/transport.h"

namespace tandem::transfer {

// kUnavailable with UCX's reason when it cannot start here, or when this build has no UCX.
Result<std::unique_ptr<Transport>> make_ucx_transport();

}  // namespace tandem::transfer

// The transport within one process: a put is a memcpy, a message goes straight into the peer's
// queue.
#pragma once

#include <memory>

#include "transfer/transport.h"

namespace tandem::transfer {

std::unique_ptr<Transport> make_local_transport();

}  // namespace tandem::transfer

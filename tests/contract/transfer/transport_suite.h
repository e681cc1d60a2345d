// The transports that a contract test runs over.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transfer/transport.h"

namespace tandem::transfer {

// "local", "tcp", "ucx" or "<fault spec>+tcp", e.g. "seed=1,delay_ms=2+tcp". Null where this build
// lacks it (ucx); a message says so.
std::unique_ptr<Transport> make_test_transport(const std::string& name);
// Local, tcp, ucx where built, and tcp with random delays.
std::vector<std::string> test_transport_names();

}  // namespace tandem::transfer

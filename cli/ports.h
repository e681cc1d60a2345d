// TCP ports of this machine: which are free, and whether somebody listens. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace tandem::cli {

// Finds free ports. Holds each until it is destroyed, so that no two calls give the same one.
class PortPicker {
 public:
  Result<uint16_t> pick(const std::string& host);

 private:
  std::vector<UniqueFd> held_;
};

// Ok when `address` could be bound just now.
Status try_bind(const HostPort& address);

// Does somebody accept connections at `address`? Waits at most `timeout_ms`.
bool accepts_connections(const HostPort& address, int timeout_ms);

}  // namespace tandem::cli

// Which process a peer is, so that one in this host can be known to be dead. Plain values, any
// thread.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::transfer {

struct ProcessIdentity {
  std::string host;  // Boot and process namespace: equal strings mean that pid means the same here
  int64_t pid = 0;
  uint64_t started = 0;  // Clock ticks after boot; tells a process from a later one with its pid

  static ProcessIdentity self();
};

bool same_host(const ProcessIdentity& process);
// True only if that process cannot run another instruction. False where it cannot be known.
bool known_dead(const ProcessIdentity& process);

}  // namespace tandem::transfer

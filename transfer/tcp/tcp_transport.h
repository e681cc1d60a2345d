// The transport over plain sockets: one connection per channel, everything on one thread of its
// own.
//
// Wire, little endian. The dialler opens with 8 bytes of magic and the acceptor's 16 random bytes
// of key (from its address); nothing else is looked at before they match. Then frames follow:
//   u32 kind | u32 zero | u64 segment or sequence | u64 offset | u64 length | `length` bytes
//   kind 1, put: the bytes belong at `offset` of that segment and are received straight into it
//   kind 2, message: goes to the handler, then the acceptor answers with the u64 sequence
#pragma once

#include <memory>

#include "transfer/transport.h"

namespace tandem::transfer {

// Listens on the host of `link.listen`, any port.
Result<std::unique_ptr<Transport>> make_tcp_transport(const Config& config);

}  // namespace tandem::transfer

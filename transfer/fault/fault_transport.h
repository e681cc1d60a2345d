// A decorator that makes any transport fail in the ways that real ones do, from a seed. For tests.
//
// The specification is a comma-separated list: seed=7 (of all draws), drop=0.01 (share of puts that
// write nothing), drop_message=0.01 (share of messages that the peer never sees; its transport must
// be decorated too), corrupt=0.01 (share of puts with one bit wrong), delay_ms=5
// (each operation up to so late, order kept), kill_at=12 (the 12th put of the process breaks its
// channel), exit_at=12 (it ends the process with SIGKILL).
#pragma once

#include <memory>
#include <string_view>

#include "transfer/transport.h"

namespace tandem::transfer {

struct FaultSpec {
  uint64_t seed = 0;
  double drop = 0;
  double drop_message = 0;
  double corrupt = 0;
  uint64_t delay_ms = 0;
  uint64_t kill_at = 0;  // 0: never
  uint64_t exit_at = 0;  // 0: never

  static Result<FaultSpec> parse(std::string_view text);
};

std::unique_ptr<Transport> make_fault_transport(std::unique_ptr<Transport> inner, FaultSpec spec);

}  // namespace tandem::transfer

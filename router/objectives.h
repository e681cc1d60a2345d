// Objectives: what a client asks of the scheduler, beside its text: how soon, how fast, how
// important, for whom. Read from headers (docs/api.md), then from the body, then from the
// configuration. Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/config.h"
#include "router/exchange.h"
#include "router/openai/request.h"
#include "router/prefix_hash.h"

namespace tandem::router {

struct Objectives {
  Duration ttft_slo{};  // Zero: the configuration's
  Duration tpot_slo{};
  Duration deadline{};  // From the request's arrival; zero: none of its own
  bool refuse_on_miss = false;
  int priority = 0;  // Lower first
  std::string tenant;
  uint64_t session = 0;     // Turns of one conversation; 0: none
  uint64_t cache_root = 0;  // Prefixes are shared among requests with the same one
};

// The headers that are read, in lower case.
bool is_objective(std::string_view header);

openai::Parsed<Objectives> read_objectives(const Headers& headers,
                                           const openai::CompletionRequest& request,
                                           const SloConfig& defaults, const PrefixHasher& hasher);

}  // namespace tandem::router

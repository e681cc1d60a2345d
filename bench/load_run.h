// Sends a workload to one server and records what came back: closed loop, open loop, or the mixed
// scenario. run() blocks the calling thread, which does all the work; it returns within
// --max-seconds plus moments, and soon after an interrupt.
#pragma once

#include <string>

#include "bench/http_client.h"
#include "bench/options.h"
#include "bench/prompt_maker.h"
#include "bench/record.h"
#include "common/status.h"

namespace tandem::bench {

// A server that is known to answer, and how to talk to it.
struct Server {
  Url url;
  std::string model;
  PromptMaker prompts;
};

// Fails only when the server's name does not resolve or the trace cannot be read; everything else
// is a failed request in the records.
Result<RunRecords> run_load(const Options& options, const Server& server, const std::string& label);

}  // namespace tandem::bench

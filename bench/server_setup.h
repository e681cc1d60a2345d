// Finds out what a load test must know about a server: that it is there, its model, its tokenizer.
#pragma once

#include "bench/load_run.h"

namespace tandem::bench {

// Waits until the server is healthy, at most `seconds`. `pause` waits between attempts, at most for
// the given time, and fails when the server is gone.
using Pause = std::function<Status(std::chrono::milliseconds limit)>;
Status wait_until_healthy(const Url& url, double seconds, const Pause& pause);

// Asks for the model where none is named and calibrates prompts; warnings go to standard error.
Result<Server> set_up_server(const Options& options, const std::string& url);

}  // namespace tandem::bench

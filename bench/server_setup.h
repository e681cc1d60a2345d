// Finds out what a load test must know about a server: that it is there, its model, its tokenizer.
#pragma once

#include "bench/load_run.h"

namespace tandem::bench {

// Waits until the server is healthy, at most `seconds`. `still_there` is asked between attempts, so that a
// server that died is not waited for.
Status wait_until_healthy(const Url& url, double seconds, const std::function<Status()>& still_there);

// Asks for the model where none is named and calibrates prompts; warnings go to standard error.
Result<Server> set_up_server(const Options& options, const std::string& url);

}  // namespace tandem::bench

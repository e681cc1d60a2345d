// What `tandem` can do: one function per command. Each takes the words after the command's name,
// prints to standard output, and returns why it failed, if it did. Called once, from main.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"

namespace tandem::cli {

using Words = std::vector<std::string>;

// Starts and supervises this machine's part of a configuration, until a signal.
Status run_up(const Words& words);
// Shows the workers once, or again and again.
Status run_status(const Words& words);
// Lets a worker finish what it has and take nothing new.
Status run_drain(const Words& words);
// Makes a worker another kind of worker.
Status run_role(const Words& words);
// Becomes tandem-bench. Returns only on failure.
Status run_loadtest(const Words& words);
// Shows the effective configuration, or all keys.
Status run_config(const Words& words);

// The folder of this program, where its siblings are.
std::string program_folder();

}  // namespace tandem::cli

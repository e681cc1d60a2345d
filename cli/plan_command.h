// `tandem plan`: how many workers of each role a trace needs. Called once, from main.
#pragma once

#include "cli/commands.h"

namespace tandem::cli {

// Searches, prints the table or JSON, writes the configuration where --out asks for it.
Status run_plan(const Words& words);

}  // namespace tandem::cli

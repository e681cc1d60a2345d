// Ctrl-C and SIGTERM: a flag that long-running loops look at. A second signal ends the process at
// once.
#pragma once

namespace tandem::bench {

// Call once, from the main thread, before other threads start.
void watch_for_interrupt();
bool interrupted();

}  // namespace tandem::bench

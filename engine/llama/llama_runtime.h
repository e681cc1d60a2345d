// libllama's process-wide state: its start, and its log, which goes to ours. Any thread, any number
// of times.
#pragma once

namespace tandem {

void start_llama_runtime();

}  // namespace tandem

#include "engine/llama/llama_runtime.h"

#include <llama.h>

#include <mutex>
#include <string>
#include <string_view>

#include "common/log.h"

namespace tandem {

namespace {

// libllama writes lines in pieces; a piece without a newline waits for the rest.
void forward_log(ggml_log_level level, const char* text, void*) {
  thread_local std::string line;
  thread_local ggml_log_level line_level = GGML_LOG_LEVEL_NONE;
  if (level != GGML_LOG_LEVEL_CONT) line_level = level;
  line += text;
  if (!line.ends_with('\n')) return;
  line.pop_back();
  // Its errors are ours to judge: what fails because of one is reported as a Status.
  if (line_level == GGML_LOG_LEVEL_ERROR) {
    log_warn("event=llama_log message={}", tandem::quoted(line));
  } else if (!line.empty()) {
    log_debug("event=llama_log message={}", tandem::quoted(line));
  }
  line.clear();
}

}  // namespace

void start_llama_runtime() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(forward_log, nullptr);
    llama_backend_init();
  });
}

}  // namespace tandem

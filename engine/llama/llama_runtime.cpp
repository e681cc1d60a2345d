#include "engine/llama/llama_runtime.h"

#include <llama.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>

#include "common/log.h"

namespace tandem {

namespace {

// A line in the making. Trivial, because engines that live until the process exits still log from
// their destructors, when this thread's other objects are gone.
struct Line {
  std::array<char, 1024> text;
  size_t size;
  ggml_log_level level;
};

// libllama writes lines in pieces; a piece without a newline waits for the rest.
void forward_log(ggml_log_level level, const char* text, void*) {
  thread_local Line line{};
  if (level != GGML_LOG_LEVEL_CONT) line.level = level;
  std::string_view piece(text);
  const bool whole = piece.ends_with('\n');
  if (whole) piece.remove_suffix(1);
  const size_t room = std::min(piece.size(), line.text.size() - line.size);
  std::copy_n(piece.data(), room, line.text.data() + line.size);
  line.size += room;
  if (!whole) return;
  // Its errors are ours to judge: what fails because of one is reported as a Status.
  const LogLevel as = line.level == GGML_LOG_LEVEL_ERROR ? LogLevel::kWarn : LogLevel::kDebug;
  if (line.size > 0 && log_enabled(as)) {
    log_at(as, "event=llama_log message={}", quoted(std::string_view(line.text.data(), line.size)));
  }
  line.size = 0;
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

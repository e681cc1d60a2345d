// Logging: one line per state change on standard error, `time=... level=... process=... event=...`.
//
// Call log_init() once in main; before it, lines of level info and above are written without a
// process name. Any thread may log; a line is written whole. Values that may hold spaces go through
// quoted(). Never log prompts, outputs or keys. Nothing to shut down: every line is flushed.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace tandem {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// False for a name that is none of debug, info, warn, error.
bool log_level_from_name(std::string_view name, LogLevel& level);
void log_init(std::string_view process, LogLevel level);
bool log_enabled(LogLevel level);
// Control characters of `message` are escaped, so that a peer's text cannot forge a line.
void log_write(LogLevel level, std::string_view message);
// `text` as a value: in double quotes when it is empty or holds spaces, quotes or `=`.
std::string quoted(std::string_view text);

template <class... Args>
void log_at(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_write(level, fmt::format(format, std::forward<Args>(args)...));
}
// A decision that explains behaviour.
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
// Lifecycle.
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
// Degraded but serving.
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kWarn, format, std::forward<Args>(args)...);
}
// Someone must act.
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace tandem

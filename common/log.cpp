#include "common/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <memory>

namespace tandem {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames = {"debug", "info", "warn", "error"};

std::atomic<LogLevel> threshold{LogLevel::kInfo};

// Never destroyed: threads may log while the process exits.
spdlog::logger& logger() {
  static auto* instance = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    auto* made = new std::shared_ptr<spdlog::logger>(
        std::make_shared<spdlog::logger>("tandem", std::move(sink)));
    (*made)->set_level(spdlog::level::trace);
    (*made)->set_formatter(std::make_unique<spdlog::pattern_formatter>(
        "time=%Y-%m-%dT%H:%M:%S.%eZ %v", spdlog::pattern_time_type::utc));
    return made;
  }();
  return **instance;
}

std::string& process_name() {
  static auto* name = new std::string;
  return *name;
}

}  // namespace

bool log_level_from_name(std::string_view name, LogLevel& level) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == name) {
      level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

void log_init(std::string_view process, LogLevel level) {
  process_name() = process.empty() ? "" : fmt::format("process={} ", process);
  threshold.store(level, std::memory_order_relaxed);
}

bool log_enabled(LogLevel level) { return level >= threshold.load(std::memory_order_relaxed); }

void log_write(LogLevel level, std::string_view message) {
  std::string line =
      fmt::format("level={} {}", kLevelNames[static_cast<size_t>(level)], process_name());
  line.reserve(line.size() + message.size());
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  logger().log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

std::string quoted(std::string_view text) {
  if (!text.empty() && text.find_first_of(" \"=\t\n\\") == std::string_view::npos) {
    return std::string(text);
  }
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out += '"';
}

}  // namespace tandem

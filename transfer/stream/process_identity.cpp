#include "transfer/stream/process_identity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace tandem::transfer {
namespace {

struct ProcessState {
  char state = 0;
  uint64_t started = 0;
};

// Fields 3 and 22 of /proc/<pid>/stat. The name before them may hold anything, a closing
// parenthesis too.
bool read_state(int64_t pid, ProcessState& out) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');
  if (name_end == text.npos) return false;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  if (!(fields >> out.state)) return false;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  return bool(fields >> out.started);
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> space{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", space.data(), space.size());
  if (boot.empty() || length <= 0) return "";
  return boot + "/" + std::string(space.data(), size_t(length));
}

size_t thread_count(int64_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator threads(fmt::format("/proc/{}/task", pid), error);
  return error ? 0 : size_t(std::distance(begin(threads), end(threads)));
}

}  // namespace

ProcessIdentity ProcessIdentity::self() {
  ProcessState state;
  read_state(::getpid(), state);
  return {host_identity(), ::getpid(), state.started};
}

bool same_host(const ProcessIdentity& process) {
  static const std::string here = host_identity();
  return !here.empty() && process.host == here;
}

bool known_dead(const ProcessIdentity& process) {
  if (!same_host(process) || process.pid <= 0 || process.started == 0) return false;
  ProcessState state;
  if (!read_state(process.pid, state)) {
    return !std::filesystem::exists(fmt::format("/proc/{}", process.pid));
  }
  if (state.started != process.started) return true;
  // A zombie is dead once no other thread of it lives.
  return (state.state == 'Z' || state.state == 'X') && thread_count(process.pid) <= 1;
}

}  // namespace tandem::transfer

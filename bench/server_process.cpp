#include "bench/server_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

namespace tandem::bench {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(50);
constexpr auto kTerminateDeadline = std::chrono::seconds(15);
constexpr auto kKillDeadline = std::chrono::seconds(5);
constexpr size_t kTailBytes = 1500;

std::string tail_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) return {};
  const auto size = static_cast<size_t>(in.tellg());
  std::string text(std::min(size, kTailBytes), '\0');
  in.seekg(static_cast<std::streamoff>(size - text.size()));
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

[[noreturn]] void become(const std::vector<char*>& argv, int output) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  const int input = open("/dev/null", O_RDONLY);
  if (input >= 0) dup2(input, STDIN_FILENO);
  execvp(argv[0], argv.data());
  const char* reason = strerror(errno);
  dprintf(STDERR_FILENO, "%s: %s\n", argv[0], reason);
  _exit(127);
}

// Waits for the end of some child, at most until `deadline`. Requires: SIGCHLD is blocked.
void wait_for_child(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
      deadline - std::chrono::steady_clock::now());
  if (left.count() <= 0) return;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  // Bounded slices: another thread may have taken the signal.
  const auto slice = std::min<std::chrono::nanoseconds>(left, kSlice);
  const timespec limit{0, static_cast<long>(slice.count())};
  sigtimedwait(&signals, nullptr, &limit);
}

// Holds SIGCHLD back while it lives, so that wait_for_child() sees it.
class BlockedChildSignal {
 public:
  BlockedChildSignal() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~BlockedChildSignal() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// True once no process of the group is left. Orphans of the group became our children.
bool group_gone(pid_t group, std::chrono::steady_clock::duration limit) {
  const BlockedChildSignal blocked;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    while (waitpid(-group, nullptr, WNOHANG) > 0) {
    }
    if (kill(-group, 0) != 0 && errno == ESRCH) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
    wait_for_child(deadline);
  }
}

}  // namespace

Result<ServerProcess> ServerProcess::start(const std::vector<std::string>& arguments,
                                           const std::string& log_file) {
  const int output = open(log_file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (output < 0)
    return Status(ErrorCode::kUnavailable,
                  fmt::format("{}: {}", log_file, std::generic_category().message(errno)));
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // So that stop() can wait for orphans of the group.
  const pid_t pid = fork();
  if (pid == 0) become(argv, output);
  close(output);
  if (pid < 0) return Status(ErrorCode::kResourceExhausted, std::generic_category().message(errno));
  setpgid(pid, pid);  // Also here: whichever of the two comes first.
  return ServerProcess(pid, log_file);
}

ServerProcess::ServerProcess(ServerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      reaped_(other.reaped_),
      exit_status_(other.exit_status_),
      log_file_(std::move(other.log_file_)) {}

Status ServerProcess::running(std::chrono::milliseconds limit) {
  const BlockedChildSignal blocked;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!reaped_) {
    if (waitpid(pid_, &exit_status_, WNOHANG) != 0) {
      reaped_ = true;
    } else if (std::chrono::steady_clock::now() >= deadline) {
      return {};
    } else {
      wait_for_child(deadline);
    }
  }
  const std::string how = WIFSIGNALED(exit_status_)
                              ? fmt::format("signal {}", WTERMSIG(exit_status_))
                              : fmt::format("exit status {}", WEXITSTATUS(exit_status_));
  return {ErrorCode::kUnavailable, fmt::format("the server ended ({}); its last output ({}):\n{}",
                                               how, log_file_, tail_of(log_file_))};
}

void ServerProcess::stop() {
  if (pid_ < 0) return;
  kill(-pid_, SIGTERM);
  if (!group_gone(pid_, kTerminateDeadline)) {
    kill(-pid_, SIGKILL);
    group_gone(pid_, kKillDeadline);
  }
  pid_ = -1;
}

}  // namespace tandem::bench

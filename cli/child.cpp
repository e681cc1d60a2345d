#include "cli/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace tandem::cli {
namespace {

constexpr size_t kLineMax = 16 << 10;
constexpr int kExecFailed = 127;

// Runs in the child between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(const char* program, char* const* argv, pid_t parent, int output,
                         int error_pipe) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExecFailed);  // It died before the line above
  const int null = open("/dev/null", O_RDONLY);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
      dup2(output, STDERR_FILENO) < 0) {
    _exit(kExecFailed);
  }
  execv(program, argv);
  const int error = errno;
  (void)!write(error_pipe, &error, sizeof error);
  _exit(kExecFailed);
}

}  // namespace

Result<Child> Child::start(const std::string& program, const std::vector<std::string>& args) {
  int output[2], failure[2];
  if (pipe2(output, O_CLOEXEC) != 0) return Status(ErrorCode::kResourceExhausted, "no pipe");
  UniqueFd output_read(output[0]), output_write(output[1]);
  if (pipe2(failure, O_CLOEXEC) != 0) return Status(ErrorCode::kResourceExhausted, "no pipe");
  UniqueFd failure_read(failure[0]), failure_write(failure[1]);
  (void)fcntl(output_read.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> words = {program};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Status(ErrorCode::kResourceExhausted, "fork failed");
  if (pid == 0) {
    become(program.c_str(), argv.data(), parent, output_write.get(), failure_write.get());
  }
  (void)setpgid(pid, pid);  // Here too: whoever comes first
  failure_write.reset();
  Child child(pid, std::move(output_read));
  // Ends at once: the pipe closes when exec succeeds.
  int error = 0;
  if (read(failure_read.get(), &error, sizeof error) == sizeof error) {
    return Status(ErrorCode::kNotFound,
                  fmt::format("{}: {}", program, std::generic_category().message(error)));
  }
  return child;
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::move(other.output_)),
      partial_line_(std::move(other.partial_line_)) {}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(output_, other.output_);
  std::swap(partial_line_, other.partial_line_);
  return *this;
}

Child::~Child() {
  if (pid_ <= 0) return;
  signal(SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool Child::read_output(const std::function<void(std::string_view)>& line) {
  char buffer[8192];
  while (true) {
    const ssize_t got = read(output_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0) break;
    partial_line_.append(buffer, static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end; (end = partial_line_.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      line(std::string_view(partial_line_).substr(begin, end - begin));
    }
    partial_line_.erase(0, begin);
    if (partial_line_.size() > kLineMax) line(std::exchange(partial_line_, {}));
  }
  if (!partial_line_.empty()) line(std::exchange(partial_line_, {}));
  return false;
}

void Child::signal(int number) const {
  if (pid_ > 0 && kill(-pid_, number) != 0) (void)kill(pid_, number);
}

bool Child::reap(int& wait_status) {
  siginfo_t info{};
  if (pid_ <= 0 ||
      waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != pid_) {
    return false;
  }
  // Helpers that it left. Before the wait: until then nobody else can have this group's number.
  (void)kill(-pid_, SIGKILL);
  while (waitpid(pid_, &wait_status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return true;
}

std::string describe_exit(int wait_status) {
  if (WIFEXITED(wait_status)) return fmt::format("status {}", WEXITSTATUS(wait_status));
  const int number = WTERMSIG(wait_status);
  return fmt::format("signal {} ({})", number, sigdescr_np(number));
}

}  // namespace tandem::cli

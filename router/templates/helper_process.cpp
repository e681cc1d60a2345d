#include "router/templates/helper_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>
#include <vector>

namespace tandem::templates {
namespace {

constexpr size_t kFrameHead = 4;
// JSON may write one byte of text as six, and the frame has a few bytes of its own.
constexpr size_t kJsonGrowth = 6;
constexpr size_t kAnswerOverhead = 8192;

Status system_failure(const std::string& what) {
  return Status(ErrorCode::kUnavailable, what + ": " + std::generic_category().message(errno));
}

// Everything that the child needs, built before fork(): between fork() and exec() only
// async-signal-safe calls are allowed.
struct Launch {
  std::vector<std::string> words;
  std::vector<std::string> environment;
  std::vector<char*> argv;
  std::vector<char*> envp;
  const int descriptors_max = static_cast<int>(std::min(::sysconf(_SC_OPEN_MAX), 1L << 20));

  explicit Launch(const RendererOptions& options) {
    // -I: no environment, no user packages; -B: writes nothing; -X utf8: text is UTF-8 in any
    // locale.
    words = {options.python,
             "-I",
             "-B",
             "-X",
             "utf8",
             options.script,
             std::to_string(options.memory_bytes_max),
             std::to_string(options.output_bytes_max)};
    if (const char* zone = std::getenv("TZ")) environment.push_back(std::string("TZ=") + zone);
    for (std::string& word : words) argv.push_back(word.data());
    for (std::string& variable : environment) envp.push_back(variable.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
  }
};

[[noreturn]] void run_child(const Launch& launch, int channel, pid_t parent) {
  // Its own group: a Ctrl-C at the terminal is the router's to handle.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDWR);
  if (null < 0 || ::dup2(channel, 0) < 0 || ::dup2(null, 1) < 0 || ::dup2(null, 2) < 0) ::_exit(1);
  if (::close_range(3, ~0u, 0) != 0) {  // Kernels before 5.9
    for (int fd = 3; fd < launch.descriptors_max; ++fd) ::close(fd);
  }
  if (::chdir("/") != 0) ::_exit(1);
  ::execve(launch.argv[0], launch.argv.data(), launch.envp.data());
  ::_exit(127);
}

// Waits until the socket is ready for `events` or the deadline passes.
Status wait_ready(int socket, short events, TimePoint deadline) {
  while (true) {
    const Duration left = deadline - SystemClock::get().now();
    if (left <= Duration::zero())
      return Status(ErrorCode::kDeadlineExceeded, "the template helper did not answer in time");
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    pollfd entry{socket, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(ms, 60'000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return system_failure("poll");
  }
}

}  // namespace

HelperProcess::HelperProcess(pid_t pid, UniqueFd socket, size_t answer_bytes_max)
    : pid_(pid), socket_(std::move(socket)), answer_bytes_max_(answer_bytes_max) {}

HelperProcess::HelperProcess(HelperProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      socket_(std::move(other.socket_)),
      answer_bytes_max_(other.answer_bytes_max_) {}

HelperProcess& HelperProcess::operator=(HelperProcess&& other) noexcept {
  if (this == &other) return *this;
  kill();
  pid_ = std::exchange(other.pid_, -1);
  socket_ = std::move(other.socket_);
  answer_bytes_max_ = other.answer_bytes_max_;
  return *this;
}

Result<HelperProcess> HelperProcess::start(const RendererOptions& options) {
  const Launch launch(options);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return system_failure("socketpair");
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return system_failure("fork");
  if (pid == 0) run_child(launch, theirs.get(), parent);
  theirs.reset();

  HelperProcess helper(pid, std::move(ours),
                       options.output_bytes_max * kJsonGrowth + kAnswerOverhead);
  const Result<std::string> ready =
      helper.receive_frame(SystemClock::get().now() + options.start_deadline);
  if (!ready.ok()) {
    return ready.status().with_context("the template helper did not start (" + options.python +
                                       " " + options.script + ")");
  }
  return helper;
}

void HelperProcess::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  socket_.reset();
}

Status HelperProcess::send_all(std::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      TANDEM_RETURN_IF_ERROR(wait_ready(socket_.get(), POLLOUT, deadline));
    } else if (errno != EINTR) {
      return system_failure("send to the template helper");
    }
  }
  return {};
}

Status HelperProcess::receive_all(char* bytes, size_t count, TimePoint deadline) {
  while (count > 0) {
    TANDEM_RETURN_IF_ERROR(wait_ready(socket_.get(), POLLIN, deadline));
    const ssize_t got = ::recv(socket_.get(), bytes, count, MSG_DONTWAIT);
    if (got == 0) return Status(ErrorCode::kUnavailable, "the template helper ended");
    if (got > 0) {
      bytes += got;
      count -= static_cast<size_t>(got);
    } else if (errno != EINTR && errno != EAGAIN) {
      return system_failure("receive from the template helper");
    }
  }
  return {};
}

Result<std::string> HelperProcess::receive_frame(TimePoint deadline) {
  unsigned char head[kFrameHead];
  TANDEM_RETURN_IF_ERROR(receive_all(reinterpret_cast<char*>(head), sizeof head, deadline));
  const size_t size =
      head[0] | size_t{head[1]} << 8 | size_t{head[2]} << 16 | size_t{head[3]} << 24;
  if (size > answer_bytes_max_)
    return Status(ErrorCode::kUnavailable, "the template helper's answer is too long");
  std::string body(size, '\0');
  TANDEM_RETURN_IF_ERROR(receive_all(body.data(), size, deadline));
  return body;
}

Result<std::string> HelperProcess::exchange(std::string_view body, TimePoint deadline) {
  std::string head;
  for (size_t i = 0; i < kFrameHead; ++i) head += static_cast<char>(body.size() >> (8 * i) & 0xff);
  TANDEM_RETURN_IF_ERROR(send_all(head, deadline));
  TANDEM_RETURN_IF_ERROR(send_all(body, deadline));
  return receive_frame(deadline);
}

}  // namespace tandem::templates

#include "cli/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "cli/child.h"

namespace tandem::cli {
namespace {

constexpr Duration kPauseMin = std::chrono::milliseconds(100);
constexpr Duration kPauseMax = std::chrono::seconds(5);
constexpr Duration kHealthyLife = std::chrono::seconds(10);
constexpr auto kProbeInterval = std::chrono::milliseconds(100);

// Asks `ready` on a thread of its own until it is ok; then fd() is readable.
class Prober {
 public:
  explicit Prober(std::function<Status()> ready)
      : event_(::eventfd(0, EFD_CLOEXEC)), thread_([this, ready = std::move(ready)] {
          std::unique_lock lock(mutex_);
          while (!stopped_) {
            lock.unlock();
            Status answer = ready();
            lock.lock();
            last_ = std::move(answer);
            if (last_.ok()) {
              const uint64_t one = 1;
              (void)!::write(event_.get(), &one, sizeof one);
              return;
            }
            wake_.wait_for(lock, kProbeInterval, [this] { return stopped_; });
          }
        }) {}
  ~Prober() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  int fd() const { return event_.get(); }
  // Why it was not ready when last asked.
  Status last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  UniqueFd event_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;  // Guarded by mutex_
  Status last_;           // Guarded by mutex_
  std::thread thread_;
};

struct Process {
  ProcessSpec spec;
  std::optional<Child> child;
  bool output_open = false;  // The child may close its output before it ends
  TimePoint started{};
  TimePoint restart_at{};  // While there is no child and one is wanted
  Backoff backoff;
  bool failed = false;  // Ended other than by a clean exit while stopping

  bool is_router() const { return spec.workers.empty(); }
  bool present() const { return child.has_value(); }
};

}  // namespace

Duration Backoff::next(Duration lived) {
  if (lived >= kHealthyLife) pause_ = {};
  pause_ = pause_ == Duration{} ? kPauseMin : std::min(2 * pause_, kPauseMax);
  return pause_;
}

class Supervisor::Impl {
 public:
  Impl(std::vector<ProcessSpec> processes, SupervisorOptions options, SupervisorEvents events,
       std::function<Status()> ready)
      : options_(std::move(options)), events_(std::move(events)), ready_(std::move(ready)) {
    for (ProcessSpec& spec : processes) processes_.push_back({.spec = std::move(spec)});
    sigset_t mask;
    sigemptyset(&mask);
    for (int number : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&mask, number);
    ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
    signals_ = UniqueFd(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  Status run() {
    phase_deadline_ = now() + options_.ready_deadline;
    for (Process& process : processes_) {
      if (Status status = start(process); !status.ok()) {
        fail(std::move(status));
        break;
      }
    }
    if (phase_ == Phase::kStarting) prober_.emplace(ready_);
    while (phase_ < Phase::kStoppingRouter || anything_present()) {
      wait();
      take_signals();
      take_output();
      take_exits();
      take_readiness();
      restart_due();
      advance_stop();
    }
    prober_.reset();
    if (outcome_.ok() && std::ranges::any_of(processes_, &Process::failed)) {
      return {ErrorCode::kInternal, "not every process ended well"};
    }
    return outcome_;
  }

 private:
  enum class Phase { kStarting, kRunning, kStoppingRouter, kStoppingWorkers, kKilling };

  static TimePoint now() { return SystemClock::get().now(); }
  bool stopping() const { return phase_ >= Phase::kStoppingRouter; }
  bool anything_present() const { return std::ranges::any_of(processes_, &Process::present); }

  Status start(Process& process) {
    auto child =
        Child::start(options_.program_folder + "/" + process.spec.program, process.spec.args);
    if (!child) return child.status().with_context("start " + process.spec.name);
    process.child.emplace(std::move(*child));
    process.output_open = true;
    process.started = now();
    process.restart_at = {};
    events_.on_started(process.spec, process.child->pid());
    return {};
  }

  void wait() {
    std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}};
    if (prober_ && phase_ == Phase::kStarting) fds.push_back({prober_->fd(), POLLIN, 0});
    for (const Process& process : processes_) {
      if (process.child && process.output_open)
        fds.push_back({process.child->output_fd(), POLLIN, 0});
    }
    TimePoint next = now() + std::chrono::seconds(1);
    if (phase_ != Phase::kRunning) next = std::min(next, phase_deadline_);
    for (const Process& process : processes_) {
      if (!process.present() && !stopping()) next = std::min(next, process.restart_at);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now()).count();
    (void)::poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(0, left)));
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) continue;  // take_exits() looks at every child
      if (stopping()) {
        enter(Phase::kKilling);
      } else {
        stop();
      }
    }
  }

  void take_output() {
    for (Process& process : processes_) {
      if (!process.child || !process.output_open) continue;
      process.output_open = process.child->read_output(
          [&](std::string_view line) { events_.on_line(process.spec, line); });
    }
  }

  void take_exits() {
    for (Process& process : processes_) {
      if (!process.child) continue;
      const pid_t pid = process.child->pid();
      int wait_status = 0;
      if (!process.child->reap(wait_status)) continue;
      (void)process.child->read_output(
          [&](std::string_view line) { events_.on_line(process.spec, line); });
      process.child.reset();
      const std::string how = describe_exit(wait_status);
      events_.on_exited(process.spec, pid, how);
      if (stopping()) {
        process.failed = process.failed || wait_status != 0;
      } else if (phase_ == Phase::kStarting) {
        fail({ErrorCode::kUnavailable, fmt::format("{} ended with {} before the cluster was ready",
                                                   process.spec.name, how)});
      } else {
        process.restart_at = now() + process.backoff.next(now() - process.started);
      }
    }
  }

  void take_readiness() {
    if (phase_ != Phase::kStarting) return;
    pollfd readable{prober_->fd(), POLLIN, 0};
    if (::poll(&readable, 1, 0) == 1) {
      phase_ = Phase::kRunning;
      events_.on_ready();
    } else if (now() >= phase_deadline_) {
      fail({ErrorCode::kDeadlineExceeded,
            fmt::format("not ready after {} s: {}", to_seconds(options_.ready_deadline),
                        prober_->last().message())});
    }
  }

  void restart_due() {
    for (Process& process : processes_) {
      if (stopping() || process.present() || now() < process.restart_at) continue;
      if (!start(process).ok()) process.restart_at = now() + process.backoff.next({});
    }
  }

  void fail(Status why) {
    outcome_ = std::move(why);
    stop();
  }

  void stop() {
    events_.on_stopping();
    enter(Phase::kStoppingRouter);
  }

  void enter(Phase phase) {
    phase_ = phase;
    const bool router = phase == Phase::kStoppingRouter;
    phase_deadline_ =
        now() + (router ? options_.router_stop_deadline : options_.worker_stop_deadline);
    for (Process& process : processes_) {
      if (!process.child) continue;
      if (phase == Phase::kKilling) {
        process.failed = true;
        process.child->signal(SIGKILL);
      } else if (process.is_router() == router) {
        process.child->signal(SIGTERM);
      }
    }
  }

  void advance_stop() {
    if (!stopping()) return;
    const bool late = now() >= phase_deadline_;
    if (phase_ == Phase::kStoppingRouter) {
      const bool router_here = std::ranges::any_of(
          processes_, [](const Process& p) { return p.is_router() && p.present(); });
      if (!router_here || late) enter(Phase::kStoppingWorkers);
    } else if (late) {
      enter(Phase::kKilling);
    }
  }

  const SupervisorOptions options_;
  const SupervisorEvents events_;
  const std::function<Status()> ready_;
  std::vector<Process> processes_;
  UniqueFd signals_;
  Phase phase_ = Phase::kStarting;
  TimePoint phase_deadline_{};
  Status outcome_;
  std::optional<Prober> prober_;
};

Supervisor::Supervisor(std::vector<ProcessSpec> processes, SupervisorOptions options,
                       SupervisorEvents events, std::function<Status()> ready)
    : impl_(std::make_unique<Impl>(std::move(processes), std::move(options), std::move(events),
                                   std::move(ready))) {}
Supervisor::~Supervisor() = default;
Status Supervisor::run() { return impl_->run(); }

}  // namespace tandem::cli

// Proves how processes are started, restarted and stopped, with small shell programs in place of
// workers.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>

#include "cli/child.h"
#include "cli/supervisor.h"
#include "common/random.h"

using namespace tandem;
using namespace tandem::cli;
using namespace std::chrono_literals;

namespace {

// A folder with programs; gone when the test ends.
class Programs {
 public:
  Programs()
      : path_(std::filesystem::temp_directory_path() /
              ("tandem-cli-" + std::to_string(random_u64()))) {
    std::filesystem::create_directories(path_);
  }
  ~Programs() { std::filesystem::remove_all(path_); }
  std::string add(const std::string& name, const std::string& script) const {
    const auto file = path_ / name;
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file.string();
  }
  std::string folder() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Waits until the process is gone, 20 s at most.
bool ends(pid_t pid) {
  const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return true;
  pollfd ended{fd.get(), POLLIN, 0};
  return ::poll(&ended, 1, 20000) == 1;
}

ProcessSpec worker(const std::string& name, const std::string& program) {
  return {.name = name, .program = program, .args = {}, .workers = {{.name = name}}};
}
ProcessSpec router(const std::string& program) {
  return {.name = "router", .program = program, .args = {}, .workers = {}};
}

// What happened, in order: "started d0", "exited d0 status 0", "ready", "stopping", "line d0 text".
struct Story {
  std::vector<std::string> events;
  std::vector<pid_t> pids;
  std::function<void(const std::string&)> on_event = [](const std::string&) {};

  void add(std::string event) {
    events.push_back(event);
    on_event(event);
  }
  SupervisorEvents handlers() {
    return {.on_started =
                [this](const ProcessSpec& p, pid_t pid) {
                  pids.push_back(pid);
                  add("started " + p.name);
                },
            .on_exited = [this](const ProcessSpec& p, pid_t,
                                const std::string& how) { add("exited " + p.name + " " + how); },
            .on_ready = [this] { add("ready"); },
            .on_stopping = [this] { add("stopping"); },
            .on_line =
                [this](const ProcessSpec& p, std::string_view line) {
                  add("line " + p.name + " " + std::string(line));
                }};
  }
  size_t count(const std::string& event) const {
    return static_cast<size_t>(std::ranges::count(events, event));
  }
  size_t index(const std::string& event) const {
    return static_cast<size_t>(std::ranges::find(events, event) - events.begin());
  }
};

constexpr const char* kObedient = "trap 'exit 0' TERM; echo up; sleep 1000 & wait";

Status not_yet() { return {ErrorCode::kUnavailable, "d0 is connecting"}; }
void terminate_self() { ::kill(::getpid(), SIGTERM); }

}  // namespace

TEST_CASE("a signal stops the router first, then the workers, and all of it is a success") {
  const Programs programs;
  programs.add("obedient", kObedient);
  Story story;
  std::atomic<int> lines{0};
  story.on_event = [&](const std::string& event) {
    if (event.starts_with("line ")) ++lines;
    if (event == "ready") terminate_self();
  };
  Supervisor supervisor({worker("d0", "obedient"), router("obedient")},
                        {.program_folder = programs.folder()}, story.handlers(),
                        [&] { return lines == 2 ? Status() : not_yet(); });
  const Status status = supervisor.run();
  CHECK_MESSAGE(status.ok(), status.to_string());
  CHECK(story.events.front() == "started d0");
  CHECK(story.index("ready") < story.index("stopping"));
  CHECK(story.index("exited router status 0") < story.index("exited d0 status 0"));
  CHECK(story.count("exited d0 status 0") == 1);
}

TEST_CASE(
    "a process that ends before the cluster is ready ends the start, and its words are shown") {
  const Programs programs;
  programs.add("obedient", kObedient);
  programs.add("failing", "echo 'no such model' >&2; exit 3");
  Story story;
  Supervisor supervisor({worker("d0", "obedient"), worker("p0", "failing")},
                        {.program_folder = programs.folder()}, story.handlers(),
                        [] { return not_yet(); });
  CHECK(supervisor.run().to_string() ==
        "unavailable: p0 ended with status 3 before the cluster was ready");
  CHECK(story.count("line p0 no such model") == 1);
  for (const pid_t pid : story.pids) CHECK(ends(pid));
}

TEST_CASE("a program that is missing ends the start") {
  const Programs programs;
  Story story;
  Supervisor supervisor({worker("d0", "absent")}, {.program_folder = programs.folder()},
                        story.handlers(), [] { return Status(); });
  CHECK(supervisor.run().to_string() ==
        "not_found: start d0: " + programs.folder() + "/absent: No such file or directory");
}

TEST_CASE("a cluster that does not get ready in time is stopped") {
  const Programs programs;
  programs.add("obedient", kObedient);
  Story story;
  Supervisor supervisor({worker("d0", "obedient")},
                        {.program_folder = programs.folder(), .ready_deadline = Milliseconds(300)},
                        story.handlers(), [] { return not_yet(); });
  CHECK(supervisor.run().to_string() ==
        "deadline_exceeded: not ready after 0.3 s: d0 is connecting");
  for (const pid_t pid : story.pids) CHECK(ends(pid));
}

TEST_CASE("a worker that dies later is started again") {
  const Programs programs;
  programs.add("obedient", kObedient);
  Story story;
  story.on_event = [&story](const std::string& event) {
    if (event == "ready") ::kill(story.pids[0], SIGKILL);
    if (event == "started d0" && story.pids.size() == 2) terminate_self();
  };
  Supervisor supervisor({worker("d0", "obedient")}, {.program_folder = programs.folder()},
                        story.handlers(), [] { return Status(); });
  (void)supervisor.run();
  CHECK(story.count("exited d0 signal 9 (Killed)") == 1);
  CHECK(story.count("started d0") == 2);
}

TEST_CASE("who ignores the signal is killed, with all that it started, and that is no success") {
  const Programs programs;
  programs.add("stubborn", "trap '' TERM; sleep 1000 & echo child $!; wait; sleep 1000");
  Story story;
  pid_t grandchild = 0;
  story.on_event = [&](const std::string& event) {
    if (!event.starts_with("line d0 child ")) return;
    grandchild = static_cast<pid_t>(std::stol(event.substr(14)));
    terminate_self();
  };
  Supervisor supervisor(
      {worker("d0", "stubborn")},
      {.program_folder = programs.folder(), .worker_stop_deadline = Milliseconds(200)},
      story.handlers(), [] { return Status(); });
  CHECK_FALSE(supervisor.run().ok());
  REQUIRE(grandchild > 0);
  CHECK(ends(grandchild));
}

TEST_CASE("pauses between restarts double up to 5 s, and a long life brings them back") {
  Backoff backoff;
  CHECK(backoff.next(0s) == 100ms);
  CHECK(backoff.next(1s) == 200ms);
  CHECK(backoff.next(1s) == 400ms);
  for (int i = 0; i < 10; ++i) CHECK(backoff.next(9s) <= 5s);
  CHECK(backoff.next(0s) == 5s);
  CHECK(backoff.next(10s) == 100ms);
}

TEST_CASE("children die with a parent that is killed") {
  int pipe_fds[2];
  REQUIRE(::pipe2(pipe_fds, O_CLOEXEC) == 0);
  UniqueFd reader(pipe_fds[0]), writer(pipe_fds[1]);
  const pid_t parent = ::fork();
  REQUIRE(parent >= 0);
  if (parent == 0) {
    auto child = Child::start("/bin/sleep", {"1000"});
    const pid_t pid = child ? child->pid() : 0;
    (void)!::write(writer.get(), &pid, sizeof pid);
    while (true) ::pause();
  }
  pid_t child = 0;
  REQUIRE(::read(reader.get(), &child, sizeof child) == sizeof child);
  REQUIRE(child > 0);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  CHECK(ends(child));
}

TEST_CASE("output comes in whole lines, the last one without its end too") {
  auto child = Child::start("/bin/sh", {"-c", "printf 'a\\nbc\\nlast'; printf 'err\\n' >&2"});
  REQUIRE(child.ok());
  std::string seen;
  pollfd readable{child->output_fd(), POLLIN, 0};
  while (child->read_output([&](std::string_view line) { seen += std::string(line) + ";"; })) {
    REQUIRE(::poll(&readable, 1, 20000) == 1);
  }
  CHECK(seen == "a;bc;lasterr;");
  CHECK(ends(child->pid()));
  int wait_status = -1;
  CHECK(child->reap(wait_status));
  CHECK(wait_status == 0);
}

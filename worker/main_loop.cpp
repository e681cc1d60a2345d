#include "worker/main_loop.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/config.h"
#include "common/log.h"
#include "worker/worker.h"

namespace tandem::worker {
namespace {

constexpr auto kSignalWait = std::chrono::milliseconds(100);

struct Arguments {
  std::string config;
  Role role = Role::kDecode;
  std::vector<std::string> names;
  std::vector<std::string> listens;
  std::vector<std::string> overrides;
  bool help = false;
};

void print_usage(std::string_view program) {
  std::printf(
      "usage: %.*s -c FILE [--role prefill|decode|coupled|partitioned] [--name N[,N...]]\n"
      "       [--listen HOST:PORT[,HOST:PORT...]] [--set key=value]...\n"
      "Runs one worker for every name, each with its own link port.\n",
      static_cast<int>(program.size()), program.data());
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= list.size()) {
    const size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Status parse(int argc, char** argv, Arguments& arguments) {
  const auto bad = [](std::string message) {
    return Status(ErrorCode::kInvalidArgument, std::move(message));
  };
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "-h" || flag == "--help") {
      arguments.help = true;
      return {};
    }
    if (i + 1 >= argc) return bad("'" + flag + "' is unknown or needs a value");
    const std::string value = argv[++i];
    if (flag == "-c" || flag == "--config") {
      arguments.config = value;
    } else if (flag == "--role") {
      if (!role_from_name(value, arguments.role)) return bad("unknown role '" + value + "'");
    } else if (flag == "--name") {
      arguments.names = split(value);
    } else if (flag == "--listen") {
      arguments.listens = split(value);
    } else if (flag == "--set") {
      arguments.overrides.push_back(value);
    } else {
      return bad("unknown argument '" + flag + "'");
    }
  }
  if (arguments.config.empty()) return bad("-c FILE is required");
  if (arguments.names.empty()) {
    const bool partitioned = arguments.role == Role::kPartitioned;
    arguments.names = {(partitioned ? "v" : std::string(role_name(arguments.role).substr(0, 1))) +
                       "0"};
  }
  if (std::count(arguments.names.begin(), arguments.names.end(), "") > 0) {
    return bad("a worker's name is empty");
  }
  if (!arguments.listens.empty() && arguments.listens.size() != arguments.names.size()) {
    return bad("--listen needs one address for each name");
  }
  return {};
}

using Workers = std::vector<std::unique_ptr<Worker>>;

Result<Workers> make_workers(const Config& config, const Arguments& arguments) {
  Workers workers;
  for (size_t i = 0; i < arguments.names.size(); ++i) {
    const std::string listen = arguments.listens.empty() ? "" : arguments.listens[i];
    auto worker = make_worker(config, arguments.role, arguments.names[i], listen);
    if (!worker) return worker.status().with_context("worker " + arguments.names[i]);
    workers.push_back(std::move(*worker));
  }
  return workers;
}

// The signal, or 0 when none came in `wait`.
int next_signal(const sigset_t& signals, std::chrono::milliseconds wait) {
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(wait.count() / 1000);
  limit.tv_nsec = static_cast<long>(wait.count() % 1000) * 1000000;
  return std::max(0, sigtimedwait(&signals, nullptr, &limit));
}

void serve(const Config& config, const Workers& workers, const sigset_t& signals) {
  int signal = 0;
  sigwait(&signals, &signal);
  if (signal != SIGTERM) return;
  for (const auto& worker : workers) worker->drain();
  // Draining begins on the engine thread: a look before that must not count as idle.
  const TimePoint until = SystemClock::get().now() + config.router.drain_deadline;
  do {
    if (next_signal(signals, kSignalWait) != 0) return;
    if (std::all_of(workers.begin(), workers.end(), [](const auto& w) { return w->idle(); }))
      return;
  } while (SystemClock::get().now() < until);
  log_warn("event=drain_deadline_passed");
}

}  // namespace

int run_main(int argc, char** argv, std::string_view program, Role default_role) {
  Arguments arguments;
  arguments.role = default_role;
  const auto fail = [&](const Status& status) {
    std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(program.size()), program.data(),
                 status.message().c_str());
    return 1;
  };
  if (Status status = parse(argc, argv, arguments); !status.ok()) return fail(status);
  if (arguments.help) {
    print_usage(program);
    return 0;
  }
  // Before any thread exists, so that all inherit it and only serve() takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  const auto config = load_config(arguments.config, arguments.overrides);
  if (!config) return fail(config.status());
  LogLevel level = LogLevel::kInfo;
  static_cast<void>(log_level_from_name(config->log.level, level));
  log_init(arguments.names.front(), level);
  auto workers = make_workers(*config, arguments);
  if (!workers) return fail(workers.status());
  for (const auto& worker : *workers) worker->start();
  for (const auto& worker : *workers) {
    std::printf("event=ready name=%s listen=%s\n", worker->name().c_str(),
                worker->address().c_str());
  }
  std::fflush(stdout);
  serve(*config, *workers, signals);
  for (const auto& worker : *workers) worker->stop();
  return 0;
}

}  // namespace tandem::worker

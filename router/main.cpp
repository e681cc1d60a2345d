// tandem-router: the OpenAI-compatible front door.
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "common/config.h"
#include "common/log.h"
#include "router/router.h"

namespace {

constexpr int kUsage = 2;

int usage() {
  std::fputs("usage: tandem-router -c FILE [--set key=value]...\n", stderr);
  return kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  std::string file;
  std::vector<std::string> overrides;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "-h" || argument == "--help") {
      usage();
      return 0;
    }
    if (i + 1 == argc) return usage();
    if (argument == "-c" || argument == "--config")
      file = argv[++i];
    else if (argument == "--set")
      overrides.emplace_back(argv[++i]);
    else
      return usage();
  }
  if (file.empty()) return usage();

  tandem::Result<tandem::Config> config = tandem::load_config(file, overrides);
  if (!config.ok()) {
    std::fprintf(stderr, "tandem-router: %s\n", config.status().message().c_str());
    return 1;
  }
  tandem::LogLevel level = tandem::LogLevel::kInfo;
  tandem::log_level_from_name(config->log.level, level);
  tandem::log_init("router", level);

  // Blocked before any thread starts, so that only sigwait() below takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  tandem::router::Router router(*config);
  if (const tandem::Status status = router.start(); !status.ok()) {
    std::fprintf(stderr, "tandem-router: %s\n", status.message().c_str());
    return 1;
  }
  int received = 0;
  sigwait(&signals, &received);
  router.drain();
  router.stop();
  return 0;
}

// tandem-bench: see --help and bench/README.md.
#include <fmt/format.h>
#include <sys/resource.h>

#include <csignal>
#include <string>
#include <vector>

#include "bench/comparison.h"
#include "bench/html_report.h"
#include "bench/interrupt.h"
#include "bench/json_report.h"
#include "bench/options.h"
#include "bench/summary.h"

namespace {

using namespace tandem;
using namespace tandem::bench;

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

int fail(int code, const Status& status) {
  fmt::print(stderr, "tandem-bench: {}\n", status.message());
  return code;
}

// One descriptor per stream.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Status write_reports(const Options& options, const std::vector<RunResult>& runs) {
  // A JSON on standard output is for a program: the table then goes to standard error.
  fmt::print(options.json_file == "-" ? stderr : stdout, "{}", summary_table(options, runs));
  if (!options.json_file.empty())
    TANDEM_RETURN_IF_ERROR(write_text(options.json_file, json_report(options, runs)));
  if (!options.html_file.empty()) {
    TANDEM_RETURN_IF_ERROR(write_text(options.html_file, html_report(options, runs)));
    fmt::print(stderr, "report: {}\n", options.html_file);
  }
  return {};
}

int run(const Options& options) {
  const auto targets = parse_targets(options);
  if (!targets.ok()) return fail(kExitUsage, targets.status());
  // A trace's faults are the user's, and known before any server starts.
  if (auto workload = Workload::make(options); !workload.ok())
    return fail(kExitUsage, workload.status());
  std::vector<RunResult> runs;
  bool failed = false;
  for (const Target& target : *targets) {
    auto result = run_target(options, target, targets->size() > 1);
    if (!result.ok()) {
      fail(kExitFailed, result.status());
      failed = true;
    } else {
      failed = failed || result->failed > 0 || result->completed == 0;
      runs.push_back(std::move(*result));
    }
    if (interrupted()) break;
  }
  if (runs.empty()) return kExitFailed;
  if (Status status = write_reports(options, runs); !status.ok()) return fail(kExitFailed, status);
  return failed || interrupted() ? kExitFailed : 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  watch_for_interrupt();
  raise_descriptor_limit();
  const auto options = parse_options({argv + 1, argv + argc});
  if (!options.ok()) return fail(kExitUsage, options.status());
  if (options->help) {
    fmt::print("{}", help_text());
    return 0;
  }
  return run(*options);
}

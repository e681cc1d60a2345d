// tandem: starts a cluster from one file, and acts on a running one.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/plan_command.h"

namespace {

struct Command {
  const char* name;
  tandem::Status (*run)(const tandem::cli::Words&);
  const char* usage;
};

constexpr Command kCommands[] = {
    {"up", tandem::cli::run_up,
     "-c FILE [--set KEY=VALUE]... [--only router|prefill|decode|coupled|partitioned] [--first N]\n"
     "             [--ready-timeout 300s] [--json]\n"
     "             start what FILE describes and keep it running until Ctrl-C"},
    {"status", tandem::cli::run_status,
     "[--watch] [--json] [--admin HOST:PORT | -c FILE]\n"
     "             show the workers: role, state, load, cache"},
    {"drain", tandem::cli::run_drain,
     "WORKER [--json] [--admin HOST:PORT | -c FILE]\n"
     "             let a worker finish what it has and take nothing new"},
    {"role", tandem::cli::run_role,
     "WORKER prefill|decode|coupled|partitioned [--json] [--admin HOST:PORT | -c FILE]\n"
     "             let a worker finish what it has, then do this"},
    {"plan", tandem::cli::run_plan,
     "--trace FILE [--profile NAME] [--ttft-ms MS] [--tpot-ms MS] [--attainment 0.9]\n"
     "             [--rate R | --rate-scale X] [--workers-max 64] [--out FILE] [--json]\n"
     "             find how many prefill and decode workers a load needs"},
    {"loadtest", tandem::cli::run_loadtest,
     "...\n             run tandem-bench (--help lists its options)"},
    {"config", tandem::cli::run_config,
     "[-c FILE] [--set KEY=VALUE]... | --markdown\n"
     "             show the effective configuration, or every key there is"},
};

void print_usage(std::FILE* out) {
  fmt::print(out, "usage: tandem COMMAND ...\n\n");
  for (const Command& command : kCommands) {
    fmt::print(out, "  {:<9}  {}\n", command.name, command.usage);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    print_usage(stdout);
    return 0;
  }
  for (const Command& command : kCommands) {
    if (name != command.name) continue;
    const tandem::Status status = command.run({argv + 2, argv + argc});
    if (status.ok()) return 0;
    fmt::print(stderr, "tandem {}: {}\n", name, status.message());
    return 1;
  }
  print_usage(stderr);
  return 2;
}

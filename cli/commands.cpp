#include "cli/commands.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "cli/admin_client.h"
#include "cli/arguments.h"
#include "cli/worker_table.h"
#include "common/config.h"

namespace tandem::cli {
namespace {

// The admin port: given, or the configuration's, or the default.
Result<AdminClient> admin_of(const Arguments& arguments) {
  if (arguments.has("--admin")) return AdminClient(arguments.value("--admin"));
  if (!arguments.has("-c")) return AdminClient(RouterConfig{}.admin);
  const auto config = load_config(arguments.value("-c"), arguments.values("--set"));
  if (!config) return config.status();
  return AdminClient(config->router.admin);
}

// Waits for a second. False when a signal asks to stop.
bool next_second(const sigset_t& signals) {
  const timespec second{.tv_sec = 1, .tv_nsec = 0};
  return ::sigtimedwait(&signals, nullptr, &second) < 0;
}

constexpr std::string_view kNameLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

// A command that asks the router to do something with one worker. `wanted`: what each word is; the
// second, where there is one, is a role.
template <class Path, class Text>
Status act_on_worker(const Words& words, const std::vector<std::string>& wanted, Path path,
                     Text text) {
  const auto arguments = parse_arguments(
      words,
      {.with_value = {"-c", "--set", "--admin"}, .flags = {"--json"}, .words_max = wanted.size()});
  if (!arguments) return arguments.status();
  const Words& given = arguments->words;
  if (given.size() < wanted.size()) {
    return {ErrorCode::kInvalidArgument, fmt::format("wanted: {}", fmt::join(wanted, " "))};
  }
  if (given[0].find_first_not_of(kNameLetters) != std::string::npos) {
    return {
        ErrorCode::kInvalidArgument,
        fmt::format("\"{}\" is not a worker's name; allowed: letters, digits, - _ .", given[0])};
  }
  Role role{};
  if (given.size() > 1 && !role_from_name(given[1], role)) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("\"{}\" is no role; allowed: {}", given[1], wanted[1])};
  }
  const auto admin = admin_of(*arguments);
  if (!admin) return admin.status();
  const auto body = admin->post(path(given));
  if (!body) return body.status();
  fmt::print("{}\n", arguments->has("--json") ? *body : text(given));
  return {};
}

}  // namespace

std::string program_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

Status run_status(const Words& words) {
  const auto arguments = parse_arguments(
      words, {.with_value = {"-c", "--set", "--admin"}, .flags = {"--json", "--watch"}});
  if (!arguments) return arguments.status();
  const auto admin = admin_of(*arguments);
  if (!admin) return admin.status();
  const bool watch = arguments->has("--watch");
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  if (watch) ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  do {
    const auto body = admin->get("/v1/workers");
    if (!body && !watch) return body.status();
    std::string text;
    if (!body) {
      text = body.status().message() + "\n";
    } else if (arguments->has("--json")) {
      const auto workers = workers_as_json(*body);
      if (!workers) return workers.status();
      text = *workers + "\n";
    } else {
      const auto workers = parse_workers(*body);
      if (!workers) return workers.status();
      text = render_workers(*workers, ::isatty(STDOUT_FILENO) == 1);
    }
    const bool clear = watch && ::isatty(STDOUT_FILENO) == 1;
    fmt::print("{}{}", clear ? "\033[H\033[2J" : "", text);
    std::fflush(stdout);
  } while (watch && next_second(signals));
  return {};
}

Status run_drain(const Words& words) {
  return act_on_worker(
      words, {"WORKER"}, [](const Words& given) { return "/v1/workers/" + given[0] + "/drain"; },
      [](const Words& given) {
        return given[0] + " is draining: it finishes what it has and takes nothing new";
      });
}

Status run_role(const Words& words) {
  return act_on_worker(
      words, {"WORKER", "prefill|decode|coupled|partitioned"},
      [](const Words& given) { return "/v1/workers/" + given[0] + "/role/" + given[1]; },
      [](const Words& given) {
        return given[0] + " finishes what it has and becomes " + given[1] +
               "; tandem status shows when";
      });
}

Status run_loadtest(const Words& words) {
  const std::string program = program_folder() + "/tandem-bench";
  std::vector<std::string> all = {program};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  return {ErrorCode::kNotFound,
          program + ": cannot be started; scripts/build.sh release builds it"};
}

Status run_config(const Words& words) {
  const auto arguments =
      parse_arguments(words, {.with_value = {"-c", "--set"}, .flags = {"--markdown"}});
  if (!arguments) return arguments.status();
  if (arguments->has("--markdown")) {
    fmt::print("{}", config_markdown());
    return {};
  }
  const auto overrides = arguments->values("--set");
  const auto config = arguments->has("-c") ? load_config(arguments->value("-c"), overrides)
                                           : parse_config("", "defaults", overrides);
  if (!config) return config.status();
  fmt::print("{}", dump_config(*config));
  return {};
}

}  // namespace tandem::cli

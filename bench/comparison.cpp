#include "bench/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "bench/load_run.h"
#include "bench/server_process.h"
#include "bench/server_setup.h"
#include "common/config.h"
#include "common/random.h"

namespace tandem::bench {
namespace {

// A listener on every address is reached on this machine's own.
std::string reachable(const std::string& listen) {
  for (const char* any : {"0.0.0.0:", "*:", "[::]:"})
    if (listen.starts_with(any)) return "127.0.0.1:" + listen.substr(std::string(any).size());
  return listen;
}

Result<Target> parse_target(std::string text) {
  Target target;
  const size_t at = text.find('@');
  if (at != std::string::npos && text.find_first_of(":/ ") > at) {
    target.label = text.substr(0, at);
    text.erase(0, at + 1);
  }
  if (text.starts_with("url=")) {
    target.what = target.url = text.substr(4);
  } else if (text.starts_with("cmd:")) {
    target.kind = Target::Kind::kCommand;
    target.what = text.substr(4);
    if (target.label.empty()) {
      const std::string program = target.what.substr(0, target.what.find(' '));
      target.label = std::filesystem::path(program).filename();
    }
  } else {
    auto config = load_config(text);
    if (!config.ok()) return config.status();
    target.kind = Target::Kind::kConfig;
    target.what = text;
    target.url = "http://" + reachable(config->router.listen);
    if (target.label.empty()) target.label = std::filesystem::path(text).stem();
  }
  if (target.label.empty()) target.label = target.url;
  return target;
}

std::vector<std::string> command_of(const Target& target) {
  if (target.kind == Target::Kind::kCommand) return {"/bin/sh", "-c", "exec " + target.what};
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return {(self.parent_path() / "tandem").string(), "up", "-c", target.what};
}

Result<ServerProcess> launch(const Options& options, const Target& target, const Url& url) {
  // A server that is there already would be measured in the new one's place.
  if (http_call(url, {"GET", "/health", "", {}}, std::chrono::milliseconds(1000)).ok()) {
    return Status(ErrorCode::kFailedPrecondition,
                  fmt::format("something already answers at {}: stop it first", target.url));
  }
  const auto log_file = std::filesystem::temp_directory_path() /
                        fmt::format("tandem-bench-{:016x}.log", random_u64());
  fmt::print(stderr, "starting {} (log: {})\n", target.label, log_file.string());
  auto process = ServerProcess::start(command_of(target), log_file);
  if (!process.ok()) return process.status();
  TANDEM_RETURN_IF_ERROR(wait_until_healthy(url, options.startup_s,
                                            [&](auto limit) { return process->running(limit); }));
  return process;
}

// Short answers from the same kind of prompts; none of the run's own, so that caches stay cold.
Options warmup_options(const Options& options) {
  Options warm = options;
  warm.num_prompts = options.warmup;
  warm.duration_s = 0.0;
  warm.request_rate = warm.ramp_to = 0.0;
  warm.trace.clear();
  warm.scenario = Scenario::kUniform;
  warm.input_len = options.input_range();
  warm.output_len = options.output_range();
  warm.seed = options.seed + 0x77a7;
  return warm;
}

Result<RunResult> measure(const Options& options, const Target& target, bool show_label) {
  auto server = set_up_server(options, target.url);
  if (!server.ok()) return server.status();
  const std::string label = show_label ? target.label : "";
  if (options.warmup > 0) {
    const Options warm = warmup_options(options);
    Server warm_server = *server;
    warm_server.prompts.reseed(warm.seed);
    auto records = run_load(warm, warm_server, (label.empty() ? "" : label + " ") + "warm-up");
    if (!records.ok()) return records.status();
    const auto failed = std::count_if(records->requests.begin(), records->requests.end(),
                                      [](const RequestRecord& request) { return !request.ok; });
    if (failed > 0) fmt::print(stderr, "warning: {} warm-up requests failed\n", failed);
  }
  auto records = run_load(options, *server, label);
  if (!records.ok()) return records.status();
  RunResult result = evaluate(options, std::move(*records));
  result.label = options.label.empty() || show_label ? target.label : options.label;
  result.model = server->model;
  result.url = target.url;
  return result;
}

}  // namespace

Result<std::vector<Target>> parse_targets(const Options& options) {
  std::vector<Target> targets;
  if (options.compare.empty()) {
    targets.push_back({Target::Kind::kUrl, options.label, options.url, options.url});
    return targets;
  }
  size_t commands = 0;
  for (const std::string& text : options.compare) {
    auto target = parse_target(text);
    if (!target.ok()) return target.status();
    if (target->kind == Target::Kind::kCommand) {
      if (commands >= options.wait_urls.size()) {
        return Status(ErrorCode::kInvalidArgument, fmt::format("'{}' needs a --wait-url", text));
      }
      target->url = options.wait_urls[commands++];
    }
    if (auto url = parse_url(target->url); !url.ok()) return url.status();
    targets.push_back(std::move(*target));
  }
  return targets;
}

Result<RunResult> run_target(const Options& options, const Target& target, bool show_label) {
  std::optional<ServerProcess> process;
  if (target.kind != Target::Kind::kUrl) {
    auto url = parse_url(target.url);
    if (!url.ok()) return url.status();
    auto launched = launch(options, target, *url);
    if (!launched.ok()) return launched.status().with_context(target.label);
    process.emplace(std::move(*launched));
  }
  auto result = measure(options, target, show_label);
  if (!result.ok() && process) {
    // The reason of a dead server is in its own output.
    if (Status status = process->running(); !status.ok()) return status.with_context(target.label);
  }
  return result;
}

}  // namespace tandem::bench

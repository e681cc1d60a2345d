#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/admin_client.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/plan.h"
#include "cli/ports.h"
#include "cli/supervisor.h"
#include "cli/worker_table.h"
#include "common/units.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

// What is printed while the cluster runs: lines for people, or one JSON object per event.
class Reporter {
 public:
  Reporter(const Plan& plan, const Config& config, bool as_json)
      : plan_(plan),
        config_(config),
        json_(as_json),
        colour_(::isatty(STDOUT_FILENO) == 1),
        begin_(SystemClock::get().now()) {
    for (const ProcessSpec& process : plan.processes) {
      width_ = std::max(width_, process.name.size());
    }
  }

  void started(const ProcessSpec& process, pid_t pid) const {
    if (!json_) return say(process, fmt::format("started, pid {}", pid));
    json event = {{"event", "started"}, {"name", process.name}, {"pid", pid}};
    event["workers"] = json::array();
    for (const WorkerSpec& worker : process.workers) {
      event["workers"].push_back(
          {{"name", worker.name}, {"role", role_name(worker.role)}, {"listen", worker.listen}});
    }
    print(event.dump());
  }

  void exited(const ProcessSpec& process, pid_t pid, const std::string& how) const {
    if (!json_) return say(process, "ended with " + how);
    print(json{{"event", "exited"}, {"name", process.name}, {"pid", pid}, {"how", how}}.dump());
  }

  void stopping() const {
    if (json_) return print(json{{"event", "stopping"}}.dump());
    print("Stopping: running answers finish first. Ctrl-C again stops at once.");
  }

  void line(const ProcessSpec& process, std::string_view text) const {
    // With --json, standard output carries events only.
    fmt::print(json_ ? stderr : stdout, "{}{}\n", prefix(process), text);
    std::fflush(json_ ? stderr : stdout);
  }

  void ready() const {
    const double seconds = to_seconds(SystemClock::get().now() - begin_);
    const std::string url = "http://" + plan_.listen;
    if (json_) {
      json event = {{"event", "ready"}, {"seconds", seconds}};
      if (plan_.router) {
        event["url"] = url;
        event["admin"] = "http://" + plan_.admin;
      }
      return print(event.dump());
    }
    print(fmt::format("\nTandem is ready after {:.1f} s: {} workers.", seconds,
                      plan_.workers().size()));
    if (!plan_.router) return;
    const bool chat = config_.model.engine != "sim";
    const std::string body =
        chat ? R"("messages": [{"role": "user", "content": "Why is the sky blue?"}])"
             : R"("prompt": "Why is the sky blue?")";
    print(
        fmt::format("  API     {0}/v1\n"
                    "  try     curl {0}/v1/{1} -H 'Content-Type: application/json' \\\n"
                    "            -d '{{\"model\": \"{2}\", {3}, \"max_tokens\": 64}}'\n"
                    "  status  {4}/tandem status --watch --admin {5}\n"
                    "  stop    Ctrl-C",
                    url, chat ? "chat/completions" : "completions", config_.model.name, body,
                    shown_folder(), plan_.admin));
  }

 private:
  static void print(const std::string& text) {
    fmt::print("{}\n", text);
    std::fflush(stdout);
  }

  void say(const ProcessSpec& process, const std::string& text) const {
    print(prefix(process) + text);
  }

  std::string prefix(const ProcessSpec& process) const {
    static constexpr int kColours[] = {36, 33, 35, 32, 34, 96, 93, 95};
    const std::string name = fmt::format("{:<{}} | ", process.name, width_);
    if (!colour_ || json_) return name;
    size_t hash = 0;
    for (const char c : process.name) hash = hash * 31 + static_cast<unsigned char>(c);
    return fmt::format("\033[{}m{}\033[0m", kColours[hash % std::size(kColours)], name);
  }

  // Relative where that is shorter to type.
  static std::string shown_folder() {
    const std::string folder = program_folder();
    char current[4096];
    if (::getcwd(current, sizeof current) == nullptr) return folder;
    const std::string prefix = std::string(current) + "/";
    return folder.starts_with(prefix) ? folder.substr(prefix.size()) : folder;
  }

  const Plan& plan_;
  const Config& config_;
  const bool json_;
  const bool colour_;
  const TimePoint begin_;
  size_t width_ = 0;
};

// Is every worker known to the router and ready? Without a router here: do they listen?
Status readiness(const Plan& plan, const std::vector<std::string>& names) {
  if (!plan.router) {
    for (const WorkerSpec& worker : plan.workers()) {
      const auto address = parse_host_port(worker.listen);
      if (!address || !accepts_connections(*address, 1000)) {
        return {ErrorCode::kUnavailable,
                fmt::format("worker {} does not listen at {}", worker.name, worker.listen)};
      }
    }
    return {};
  }
  const AdminClient admin(plan.admin);
  const auto body = admin.get("/v1/workers");
  if (!body) return body.status();
  const auto workers = parse_workers(*body);
  if (!workers) return workers.status();
  TANDEM_RETURN_IF_ERROR(all_ready(*workers, names));
  const auto health = admin.get("/health");
  return health ? Status() : health.status();
}

Result<UpOptions> read_options(const Arguments& arguments) {
  UpOptions options{.config_file = arguments.value("-c"),
                    .overrides = arguments.values("--set"),
                    .only = arguments.value("--only")};
  if (options.config_file.empty()) {
    return Status(ErrorCode::kInvalidArgument,
                  "-c FILE is missing; for example: tandem up -c configs/local.yaml");
  }
  Role role{};
  if (!options.only.empty() && options.only != "router" && !role_from_name(options.only, role)) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "--only: found \"{}\"; allowed: router | prefill | decode | coupled | partitioned",
            options.only));
  }
  const auto first = parse_integer(arguments.value("--first", "0"));
  if (!first || *first < 0 || *first > 100000) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("--first: found \"{}\"; allowed: 0 to 100000", arguments.value("--first")));
  }
  options.first = static_cast<int>(*first);
  return options;
}

Result<Plan> prepare(const Config& config, const UpOptions& options) {
  TANDEM_RETURN_IF_ERROR(check_model(config));
  PortPicker picker;  // Lets its ports go when the plan is made
  auto plan =
      make_plan(config, options, [&picker](const std::string& host) { return picker.pick(host); });
  if (!plan) return plan;
  if (plan->router) {
    if (config.router.listen == plan->listen) {
      TANDEM_RETURN_IF_ERROR(check_address("router.listen", plan->listen));
    }
    if (config.router.admin == plan->admin) {
      TANDEM_RETURN_IF_ERROR(check_address("router.admin", plan->admin));
    }
  }
  const std::string folder = program_folder();
  for (const ProcessSpec& process : plan->processes) {
    const std::string program = folder + "/" + process.program;
    if (::access(program.c_str(), X_OK) != 0) {
      return Status(ErrorCode::kNotFound,
                    program + ": there is no such program; scripts/build.sh release builds it");
    }
  }
  return plan;
}

}  // namespace

Status run_up(const Words& words) {
  const auto arguments = parse_arguments(
      words,
      {.with_value = {"-c", "--set", "--only", "--first", "--ready-timeout"}, .flags = {"--json"}});
  if (!arguments) return arguments.status();
  const auto options = read_options(*arguments);
  if (!options) return options.status();
  const std::string timeout_text = arguments->value("--ready-timeout", "300s");
  const auto timeout = parse_duration(timeout_text);
  if (!timeout || timeout->count() == 0) {
    return {
        ErrorCode::kInvalidArgument,
        fmt::format("--ready-timeout: found \"{}\"; allowed: a time such as 300s", timeout_text)};
  }
  const auto config = load_config(options->config_file, options->overrides);
  if (!config) return config.status();
  const auto plan = prepare(*config, *options);
  if (!plan) return plan.status();

  const Reporter reporter(*plan, *config, arguments->has("--json"));
  std::vector<std::string> names;
  for (const WorkerSpec& worker : plan->workers()) names.push_back(worker.name);
  SupervisorOptions supervisor_options{
      .program_folder = program_folder(),
      .ready_deadline = std::chrono::duration_cast<Milliseconds>(*timeout),
      // The router's own time, and some to close down.
      .router_stop_deadline = config->router.drain_deadline + Milliseconds(5000)};
  Supervisor supervisor(
      plan->processes, supervisor_options,
      {.on_started = [&](const ProcessSpec& p, pid_t pid) { reporter.started(p, pid); },
       .on_exited = [&](const ProcessSpec& p, pid_t pid,
                        const std::string& how) { reporter.exited(p, pid, how); },
       .on_ready = [&] { reporter.ready(); },
       .on_stopping = [&] { reporter.stopping(); },
       .on_line = [&](const ProcessSpec& p, std::string_view text) { reporter.line(p, text); }},
      [&] { return readiness(*plan, names); });
  return supervisor.run();
}

}  // namespace tandem::cli

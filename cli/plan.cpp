#include "cli/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/ports.h"

namespace tandem::cli {
namespace {

struct RoleNames {
  Role role;
  const char* prefix;
  const char* program;
};
constexpr RoleNames kRoles[] = {{Role::kPrefill, "p", "tandem-prefill-worker"},
                                {Role::kDecode, "d", "tandem-decode-worker"},
                                {Role::kCoupled, "c", "tandem-decode-worker"},
                                {Role::kPartitioned, "v", "tandem-decode-worker"}};

std::string join_address(const std::string& host, uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

class Planner {
 public:
  Planner(const Config& config, const UpOptions& options, const FreePort& free_port)
      : config_(config), options_(options), free_port_(free_port) {}

  Result<Plan> make() {
    for (const RoleNames& names : kRoles) {
      if (starts(role_name(names.role))) TANDEM_RETURN_IF_ERROR(add_pool(names));
    }
    if (starts("router")) TANDEM_RETURN_IF_ERROR(add_router());
    if (plan_.processes.empty()) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("{}: nothing to start: pools.{}.replicas is 0",
                                options_.config_file, options_.only));
    }
    return std::move(plan_);
  }

 private:
  bool starts(std::string_view part) const {
    return options_.only.empty() || options_.only == part;
  }

  std::vector<std::string> common_args() const {
    std::vector<std::string> args = {"-c", options_.config_file};
    for (const std::string& entry : options_.overrides) {
      args.push_back("--set");
      args.push_back(entry);
    }
    return args;
  }

  // The next worker's link address: the configured port and those after it, or any free one.
  Result<std::string> next_address() {
    const auto base = parse_host_port(config_.link.listen);
    if (!base) return base.status();
    if (base->port == 0) {
      const auto port = free_port_(base->host);
      if (!port) return port.status();
      return join_address(base->host, *port);
    }
    const int port = base->port + fixed_ports_used_++;
    if (port > 65535) {
      return Status(ErrorCode::kInvalidArgument,
                    "link.listen: too many workers for the ports from " + config_.link.listen);
    }
    return join_address(base->host, static_cast<uint16_t>(port));
  }

  Status add_pool(const RoleNames& names) {
    const PoolConfig& pool = config_.pool(names.role);
    const int per_process = config_.model.engine == "sim" ? config_.sim.workers_per_process : 1;
    for (int begin = 0; begin < pool.replicas; begin += per_process) {
      const int end = std::min(pool.replicas, begin + per_process);
      ProcessSpec process{.program = names.program, .args = common_args()};
      std::string worker_names, addresses;
      for (int i = begin; i < end; ++i) {
        auto address = next_address();
        if (!address) return address.status();
        WorkerSpec worker{fmt::format("{}{}", names.prefix, options_.first + i), names.role,
                          *address};
        const char* comma = i == begin ? "" : ",";
        worker_names += comma + worker.name;
        addresses += comma + worker.listen;
        process.workers.push_back(std::move(worker));
      }
      const auto& workers = process.workers;
      process.name = workers.size() == 1 ? workers.front().name
                                         : workers.front().name + "-" + workers.back().name;
      process.args.insert(process.args.end(), {"--role", std::string(role_name(names.role)),
                                               "--name", worker_names, "--listen", addresses});
      plan_.processes.push_back(std::move(process));
    }
    return {};
  }

  Status add_router() {
    ProcessSpec router{.name = "router", .program = "tandem-router", .args = common_args()};
    const auto set = [&router](const std::string& key, const std::string& value) {
      router.args.insert(router.args.end(), {"--set", key + "=" + value});
    };
    bool any = false;
    for (const RoleNames& names : kRoles) {
      std::vector<std::string> addresses = config_.pool(names.role).workers;
      for (const WorkerSpec& worker : plan_.workers()) {
        if (worker.role == names.role) addresses.push_back("tcp://" + reachable(worker.listen));
      }
      if (addresses.empty()) continue;
      any = true;
      set(fmt::format("pools.{}.workers", role_name(names.role)),
          fmt::format("[\"{}\"]", fmt::join(addresses, "\",\"")));
    }
    if (!any) {
      return {ErrorCode::kInvalidArgument,
              fmt::format("{}: no workers: set pools.prefill.replicas and pools.decode.replicas, "
                          "or pools.*.workers where they run elsewhere",
                          options_.config_file)};
    }
    for (const auto& [key, configured, chosen] :
         {std::tuple{"router.listen", &config_.router.listen, &plan_.listen},
          std::tuple{"router.admin", &config_.router.admin, &plan_.admin}}) {
      *chosen = *configured;
      const auto address = parse_host_port(*configured);
      if (!address) return address.status();
      if (address->port != 0) continue;
      const auto port = free_port_(address->host);
      if (!port) return port.status();
      *chosen = join_address(address->host, *port);
      set(key, *chosen);
    }
    plan_.router = true;
    plan_.processes.push_back(std::move(router));
    return {};
  }

  // Where this machine's router finds a worker that listens on all addresses.
  static std::string reachable(const std::string& listen) {
    const auto address = parse_host_port(listen);
    if (address && address->host == "0.0.0.0") return join_address("127.0.0.1", address->port);
    if (address && address->host == "::") return join_address("::1", address->port);
    return listen;
  }

  const Config& config_;
  const UpOptions& options_;
  const FreePort& free_port_;
  Plan plan_;
  int fixed_ports_used_ = 0;
};

}  // namespace

std::vector<WorkerSpec> Plan::workers() const {
  std::vector<WorkerSpec> all;
  for (const ProcessSpec& process : processes) {
    all.insert(all.end(), process.workers.begin(), process.workers.end());
  }
  return all;
}

Result<Plan> make_plan(const Config& config, const UpOptions& options, const FreePort& free_port) {
  return Planner(config, options, free_port).make();
}

Status check_model(const Config& config) {
  if (config.model.engine != "llama") return {};
  const std::string& path = config.model.path;
  if (path.empty()) {
    return {ErrorCode::kInvalidArgument, "model.path is not set; allowed: a GGUF file"};
  }
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return {ErrorCode::kNotFound,
            fmt::format("model.path: {}: there is no such file (scripts/setup.sh fetches the "
                        "default model)",
                        path)};
  }
  std::ifstream in(path, std::ios::binary);
  char magic[4] = {};
  if (!std::filesystem::is_regular_file(path, error) || !in.read(magic, sizeof magic) ||
      std::string_view(magic, sizeof magic) != "GGUF") {
    return {ErrorCode::kInvalidArgument,
            fmt::format("model.path: {}: this is not a GGUF file", path)};
  }
  return {};
}

Status check_address(const std::string& key, const std::string& address) {
  const auto parsed = parse_host_port(address);
  if (!parsed) return parsed.status().with_context(key);
  const Status bound = try_bind(*parsed);
  if (bound.ok()) return {};
  return {bound.code(), fmt::format("{}: {}: {}; choose another with --set {}=host:port", key,
                                    address, bound.message(), key)};
}

}  // namespace tandem::cli

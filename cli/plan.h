// What `tandem up` starts: the processes of one machine's part of a configuration, with names,
// ports and command lines. Pure but for the ports and the model file, which are looked at through
// arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/config.h"
#include "common/status.h"
#include "common/types.h"

namespace tandem::cli {

struct UpOptions {
  std::string config_file;
  std::vector<std::string> overrides;  // As given with --set, passed on to every process
  std::string only;                    // "", "router" or a role's name
  // Number of the first worker of each pool: p0, or p4 on another host
  int first = 0;
};

struct WorkerSpec {
  std::string name;  // "p0"
  Role role = Role::kDecode;
  std::string listen;  // host:port
};

struct ProcessSpec {
  std::string name;     // "router", "p0", "d0-d7"
  std::string program;  // File name, found beside `tandem`
  std::vector<std::string> args;
  std::vector<WorkerSpec> workers;  // Empty for the router
};

struct Plan {
  std::vector<ProcessSpec> processes;  // In the order of their start
  bool router = false;
  std::string listen;  // The router's addresses, ports chosen
  std::string admin;

  std::vector<WorkerSpec> workers() const;
};

// A port on `host` that nobody uses, another one at each call.
using FreePort = std::function<Result<uint16_t>(const std::string& host)>;

// kInvalidArgument when there is nothing to start.
Result<Plan> make_plan(const Config& config, const UpOptions& options, const FreePort& free_port);

// Is the model there, and is it a GGUF file? Ok where none is needed.
Status check_model(const Config& config);
// Can the router's addresses be bound? kUnavailable names the key and the address.
Status check_address(const std::string& key, const std::string& address);

}  // namespace tandem::cli

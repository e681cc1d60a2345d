// The answer of `GET /v1/workers` as people read it. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace tandem::cli {

struct WorkerRow {
  std::string name;  // Its address until it has said its name
  std::string role;
  std::string state;   // connecting | ready | draining | refused
  std::string reason;  // Why it is not ready
  std::string model;
  int slots = 0;
  int slots_free = 0;
  int running = 0;
  int waiting = 0;
  int64_t kv_used = 0;
  int64_t kv_reserved = 0;
  int64_t kv_capacity = 0;
  int transfers = 0;
};

// `json`: the list, or an object with the list as `data`. Fields that are missing stay empty.
// kInvalidArgument for what is not a list of workers.
Result<std::vector<WorkerRow>> parse_workers(std::string_view json);

// The same list as `{"workers": [...]}`, with all that the router says of each.
Result<std::string> workers_as_json(std::string_view json);

// Columns aligned, one line each, a total below; `colour` marks states.
std::string render_workers(const std::vector<WorkerRow>& workers, bool colour);

// Ok when each of `names` is there and ready; else kUnavailable says which is not, and why.
Status all_ready(const std::vector<WorkerRow>& workers, const std::vector<std::string>& names);

}  // namespace tandem::cli

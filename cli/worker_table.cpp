#include "cli/worker_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace tandem::cli {
namespace {

using nlohmann::json;

std::string text_at(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

template <class Int>
Int number_at(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<Int>() : Int{0};
}

const char* colour_of(const std::string& state) {
  if (state == "ready") return "\033[32m";
  if (state == "draining" || state == "switching" || state == "connecting") return "\033[33m";
  return "\033[31m";
}

std::string percent(int64_t part, int64_t whole) {
  return whole > 0 ? fmt::format("{:.0f}%",
                                 100.0 * static_cast<double>(part) / static_cast<double>(whole))
                   : "-";
}

Result<json> list_in(std::string_view text) {
  json list = json::parse(text, nullptr, false);
  if (list.is_object() && list.contains("data")) list = json(list["data"]);
  if (!list.is_array() || !std::ranges::all_of(list, [](const json& j) { return j.is_object(); })) {
    return Status(ErrorCode::kInvalidArgument, "the answer is not a list of workers");
  }
  return list;
}

constexpr size_t kColumns = 9;
using Line = std::array<std::string, kColumns>;
constexpr std::array<const char*, kColumns> kHeads = {"WORKER",  "ROLE",        "STATE",
                                                      "RUNNING", "WAITING",     "SLOTS FREE",
                                                      "KV USED", "KV RESERVED", "TRANSFERS"};
constexpr size_t kStateColumn = 2;
constexpr size_t kTextColumns = 3;  // Left-aligned; numbers after them to the right

Line line_of(const WorkerRow& row) {
  return {row.name,
          row.role,
          row.state,
          std::to_string(row.running),
          std::to_string(row.waiting),
          fmt::format("{}/{}", row.slots_free, row.slots),
          fmt::format("{} {:>4}", row.kv_used, percent(row.kv_used, row.kv_capacity)),
          std::to_string(row.kv_reserved),
          std::to_string(row.transfers)};
}

}  // namespace

Result<std::string> workers_as_json(std::string_view text) {
  auto list = list_in(text);
  if (!list) return list.status();
  return json{{"workers", std::move(*list)}}.dump();
}

Result<std::vector<WorkerRow>> parse_workers(std::string_view text) {
  const auto list = list_in(text);
  if (!list) return list.status();
  std::vector<WorkerRow> rows;
  for (const json& item : *list) {
    WorkerRow row{.name = text_at(item, "name"),
                  .role = text_at(item, "role"),
                  .state = text_at(item, "state"),
                  .reason = text_at(item, "reason"),
                  .model = text_at(item, "model"),
                  .slots = number_at<int>(item, "slots"),
                  .slots_free = number_at<int>(item, "slots_free"),
                  .running = number_at<int>(item, "running"),
                  .waiting = number_at<int>(item, "waiting"),
                  .kv_used = number_at<int64_t>(item, "kv_tokens_used"),
                  .kv_reserved = number_at<int64_t>(item, "kv_tokens_reserved"),
                  .kv_capacity = number_at<int64_t>(item, "kv_tokens_capacity"),
                  .transfers = number_at<int>(item, "transfers_in_flight")};
    if (row.name.empty()) row.name = text_at(item, "address");
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string render_workers(const std::vector<WorkerRow>& workers, bool colour) {
  std::vector<Line> lines = {Line{}};
  std::ranges::copy(kHeads, lines.front().begin());
  WorkerRow sum{.name = fmt::format("{} workers", workers.size())};
  for (const WorkerRow& row : workers) {
    lines.push_back(line_of(row));
    sum.running += row.running;
    sum.waiting += row.waiting;
    sum.slots += row.slots;
    sum.slots_free += row.slots_free;
    sum.kv_used += row.kv_used;
    sum.kv_reserved += row.kv_reserved;
    sum.kv_capacity += row.kv_capacity;
    sum.transfers += row.transfers;
  }
  lines.push_back(line_of(sum));

  std::array<size_t, kColumns> widths{};
  for (const Line& line : lines) {
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const Line& line : lines) {
    std::string text;
    for (size_t i = 0; i < kColumns; ++i) {
      std::string cell = i < kTextColumns ? fmt::format("{:<{}}", line[i], widths[i])
                                          : fmt::format("{:>{}}", line[i], widths[i]);
      const bool is_state = i == kStateColumn && &line != &lines.front() && !line[i].empty();
      if (colour && is_state) cell = colour_of(line[i]) + cell + "\033[0m";
      text += cell + (i + 1 < kColumns ? "  " : "");
    }
    out += text + "\n";
  }
  for (const WorkerRow& row : workers) {
    if (!row.reason.empty()) out += fmt::format("{}: {}\n", row.name, row.reason);
  }
  return out;
}

Status all_ready(const std::vector<WorkerRow>& workers, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto row = std::ranges::find(workers, name, &WorkerRow::name);
    if (row == workers.end()) {
      return {ErrorCode::kUnavailable, fmt::format("worker {} is not connected", name)};
    }
    if (row->state != "ready") {
      const std::string reason = row->reason.empty() ? "" : ": " + row->reason;
      return {ErrorCode::kUnavailable, fmt::format("worker {} is {}{}", name, row->state, reason)};
    }
  }
  return {};
}

}  // namespace tandem::cli

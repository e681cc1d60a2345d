#include "scheduler/decision_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tandem::scheduler {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Calls `visit(name, member)` for every plain field, so that writing and reading cannot differ.
template <class Record, class Visit>
void visit_record(Record& r, Visit visit) {
  visit("request", r.request);
  visit("at_ms", r.at_ms);
  visit("waited_ms", r.waited_ms);
  visit("prompt_tokens", r.prompt_tokens);
  visit("cached_tokens", r.cached_tokens);
  visit("max_tokens", r.max_tokens);
  visit("choices", r.choices);
  visit("priority", r.priority);
  visit("ttft_slo_ms", r.ttft_slo_ms);
  visit("tpot_slo_ms", r.tpot_slo_ms);
  visit("path", r.path);
  visit("prefill", r.prefill);
  visit("decode", r.decode);
  visit("reason", r.reason);
  visit("predicted_ttft_ms", r.predicted_ttft_ms);
  visit("predicted_ttft_bound_ms", r.predicted_ttft_bound_ms);
  visit("predicted_tpot_ms", r.predicted_tpot_ms);
  visit("outcome", r.outcome);
  visit("ttft_ms", r.ttft_ms);
  visit("tpot_ms", r.tpot_ms);
  visit("output_tokens", r.output_tokens);
}
template <class State, class Visit>
void visit_state(State& s, Visit visit) {
  visit("name", s.name);
  visit("accepting", s.accepting);
  visit("slots", s.slots);
  visit("slots_free", s.slots_free);
  visit("kv_tokens_capacity", s.kv_tokens_capacity);
  visit("kv_tokens_used", s.kv_tokens_used);
  visit("kv_tokens_reserved", s.kv_tokens_reserved);
  visit("prefill_backlog_tokens", s.prefill_backlog_tokens);
  visit("decode_step_ms", s.decode_step_ms);
  visit("prefill_us_per_token", s.prefill_us_per_token);
}

struct Reader {
  const json& object;
  std::string& error;

  void operator()(const char* name, std::string& value) const {
    read(name, &json::is_string, "a text", value);
  }
  void operator()(const char* name, bool& value) const {
    read(name, &json::is_boolean, "true or false", value);
  }
  template <class Number>
  void operator()(const char* name, Number& value) const {
    constexpr bool whole = std::is_integral_v<Number>;
    read(name, whole ? &json::is_number_integer : &json::is_number,
         whole ? "a whole number" : "a number", value);
  }
  template <class Value>
  void read(const char* name, bool (json::*is)() const noexcept, const char* what,
            Value& value) const {
    if (!error.empty()) return;
    const auto found = object.find(name);
    if (found == object.end()) {
      error = fmt::format("no field {}", name);
    } else if (!((*found).*is)()) {
      error = fmt::format("{} is not {}", name, what);
    } else {
      value = found->get<Value>();
    }
  }
};

Status bad(std::string why) { return Status(ErrorCode::kInvalidArgument, std::move(why)); }

}  // namespace

std::string_view path_name(Path path) {
  switch (path) {
    case Path::kRemote:
      return "remote";
    case Path::kLocal:
      return "local";
    case Path::kPrefillOnly:
      return "prefill_only";
    case Path::kRefuse:
      break;
  }
  return "refused";
}

std::string decision_line(const DecisionRecord& record) {
  ordered_json out;
  visit_record(record, [&](const char* name, const auto& value) { out[name] = value; });
  out["candidates"] = ordered_json::array();
  for (size_t i = 0; i < std::min(record.candidates.size(), kLoggedCandidatesMax); ++i) {
    ordered_json state{{"role", role_name(record.candidates[i].role)}};
    visit_state(record.candidates[i],
                [&](const char* name, const auto& value) { state[name] = value; });
    out["candidates"].push_back(std::move(state));
  }
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Result<DecisionRecord> parse_decision(std::string_view line) {
  if (line.size() > kDecisionLineBytesMax)
    return bad(fmt::format("longer than {} bytes", kDecisionLineBytesMax));
  const json object = json::parse(line, nullptr, false);
  if (!object.is_object()) return bad("not a JSON object");
  DecisionRecord record;
  std::string error;
  visit_record(record, Reader{object, error});
  if (!error.empty()) return bad(error);
  for (const auto& [name, least] : {std::pair("prompt_tokens", record.prompt_tokens - 1),
                                    {"cached_tokens", record.cached_tokens},
                                    {"max_tokens", record.max_tokens - 1},
                                    {"choices", record.choices - 1}})
    if (least < 0) return bad(fmt::format("{} is too small", name));
  const auto states = object.find("candidates");
  if (states == object.end() || !states->is_array()) return bad("no array candidates");
  for (const json& entry : *states) {
    if (!entry.is_object()) return bad("a candidate is not a JSON object");
    WorkerState state;
    std::string role;
    const Reader reader{entry, error};
    visit_state(state, reader);
    reader("role", role);
    if (!error.empty()) return bad("a candidate has " + error);
    if (!role_from_name(role, state.role))
      return bad(fmt::format("a candidate has the unknown role \"{}\"", role));
    record.candidates.push_back(std::move(state));
  }
  return record;
}

Result<std::vector<DecisionRecord>> read_decisions(std::istream& in, const std::string& name) {
  std::vector<DecisionRecord> records;
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto record = parse_decision(line);
    if (!record.ok()) {
      if (in.eof()) break;
      return bad(fmt::format("{}:{}: {}", name, number, record.status().message()));
    }
    records.push_back(std::move(*record));
  }
  if (records.empty()) return bad(name + ": no decisions");
  return records;
}

}  // namespace tandem::scheduler

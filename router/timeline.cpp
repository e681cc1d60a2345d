#include "router/timeline.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tandem::router {
namespace {

// A batch of a thousand prompts is told apart by its first attempts; the rest are counted.
constexpr size_t kAttemptsMax = 64;
constexpr size_t kLandedMax = 32;

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

void Timeline::set(Times& times, std::string_view name, int64_t at_us, bool keep_first) {
  for (auto& [known, at] : times) {
    if (known != name) continue;
    if (!keep_first) at = at_us;
    return;
  }
  times.emplace_back(name, at_us);
}

Timeline::Record* Timeline::find(uint64_t number) {
  if (records_.empty() || number < records_.front().number || number > records_.back().number)
    return nullptr;
  return &records_[number - records_.front().number];
}

Timeline::Attempt* Timeline::find_attempt(uint64_t number, TransferId transfer) {
  Record* record = find(number);
  if (record == nullptr) return nullptr;
  for (auto it = record->attempts.rbegin(); it != record->attempts.rend(); ++it)
    if (it->transfer == transfer) return &*it;
  return nullptr;
}

void Timeline::drop_oldest() {
  const Record& record = records_.front();
  for (const Attempt& attempt : record.attempts) transfers_.erase(attempt.transfer);
  if (const auto it = newest_.find(record.id); it != newest_.end() && it->second == record.number)
    newest_.erase(it);
  records_.pop_front();
}

uint64_t Timeline::begin(const std::string& request_id, std::string_view endpoint,
                         int64_t received_us) {
  const std::lock_guard lock(mutex_);
  while (records_.size() >= records_max_) drop_oldest();
  Record& record = records_.emplace_back();
  record.number = next_++;
  record.id = request_id;
  record.endpoint = endpoint;
  record.times.emplace_back("received", received_us);
  newest_[request_id] = record.number;
  return record.number;
}

void Timeline::note(uint64_t number, std::string_view name) {
  const int64_t now_us = clock_.wall_us();
  const std::lock_guard lock(mutex_);
  if (Record* record = find(number)) set(record->times, name, now_us, true);
}

void Timeline::note_last(uint64_t number, std::string_view name) {
  const int64_t now_us = clock_.wall_us();
  const std::lock_guard lock(mutex_);
  if (Record* record = find(number)) set(record->times, name, now_us, false);
}

void Timeline::tokens(uint64_t number, int64_t prompt, int64_t completion) {
  const std::lock_guard lock(mutex_);
  Record* record = find(number);
  if (record == nullptr) return;
  record->prompt_tokens = prompt;
  record->completion_tokens = completion;
}

void Timeline::end(uint64_t number, std::string_view outcome, int status) {
  const int64_t now_us = clock_.wall_us();
  const std::lock_guard lock(mutex_);
  Record* record = find(number);
  if (record == nullptr) return;
  record->outcome = outcome;
  record->status = status;
  set(record->times, "ended", now_us, false);
}

void Timeline::attempt_queued(uint64_t number, TransferId transfer, int prompt_tokens,
                              bool resumed) {
  const int64_t now_us = clock_.wall_us();
  const std::lock_guard lock(mutex_);
  Record* record = find(number);
  if (record == nullptr) return;
  if (record->attempts.size() >= kAttemptsMax) {
    ++record->attempts_left_out;
    return;
  }
  Attempt& attempt = record->attempts.emplace_back();
  attempt.transfer = transfer;
  attempt.prompt_tokens = prompt_tokens;
  attempt.resumed = resumed;
  attempt.outcome = "running";
  attempt.times.emplace_back("queued", now_us);
  set(record->times, "queued", now_us, true);
  transfers_[transfer] = number;
}

void Timeline::attempt_dispatched(uint64_t number, TransferId transfer,
                                  const Placement& placement) {
  const int64_t now_us = clock_.wall_us();
  const std::lock_guard lock(mutex_);
  Attempt* attempt = find_attempt(number, transfer);
  if (attempt == nullptr) return;
  attempt->path = placement.path;
  attempt->prefill = placement.prefill;
  attempt->decode = placement.decode;
  attempt->reason = placement.reason;
  attempt->predicted_ttft_ms = placement.predicted_ttft_ms;
  attempt->predicted_ttft_bound_ms = placement.predicted_ttft_bound_ms;
  set(attempt->times, "dispatched", now_us, true);
}

void Timeline::attempt_first_token(uint64_t number, TransferId transfer, double ttft_ms) {
  const int64_t now_us = clock_.wall_us();
  const std::lock_guard lock(mutex_);
  Attempt* attempt = find_attempt(number, transfer);
  if (attempt == nullptr) return;
  attempt->ttft_ms = ttft_ms;
  set(attempt->times, "first_token", now_us, true);
}

void Timeline::attempt_prefilled(uint64_t number, const link::PrefillDone& done) {
  const std::lock_guard lock(mutex_);
  Attempt* attempt = find_attempt(number, done.transfer);
  if (attempt == nullptr) return;
  attempt->cached_tokens = done.cached_tokens;
  attempt->computed_tokens = done.computed_tokens;
  attempt->kv_bytes = std::max(attempt->kv_bytes, done.kv_bytes);
  if (done.started_us > 0) set(attempt->times, "prefill_start", done.started_us, false);
  if (done.ended_us > 0) set(attempt->times, "prefill_end", done.ended_us, false);
}

void Timeline::attempt_ended(uint64_t number, TransferId transfer, std::string_view outcome) {
  const int64_t now_us = clock_.wall_us();
  const std::lock_guard lock(mutex_);
  Attempt* attempt = find_attempt(number, transfer);
  if (attempt == nullptr) return;
  attempt->outcome = outcome;
  set(attempt->times, "ended", now_us, false);
}

void Timeline::worker_event(const link::LegEvent& event) {
  static constexpr std::string_view kKnown[] = {"accepted", "granted", "prefill_start", "kv_first",
                                                "kv_last",  "landed",  "joined",        "released"};
  if (std::find(std::begin(kKnown), std::end(kKnown), event.name) == std::end(kKnown)) return;
  const std::lock_guard lock(mutex_);
  const auto it = transfers_.find(event.transfer);
  if (it == transfers_.end()) return;
  Attempt* attempt = find_attempt(it->second, event.transfer);
  if (attempt == nullptr) return;
  set(attempt->times, event.name, event.at_us,
      event.name == "accepted" || event.name == "kv_first");
  if (event.name != "kv_last") return;
  attempt->kv_bytes = std::max(attempt->kv_bytes, event.bytes);
  attempt->landed = event.landed;
  if (attempt->landed.size() > kLandedMax) attempt->landed.resize(kLandedMax);
}

size_t Timeline::size() const {
  const std::lock_guard lock(mutex_);
  return records_.size();
}

std::optional<std::string> Timeline::json(const std::string& request_id) const {
  using nlohmann::json;
  Record record;
  {
    const std::lock_guard lock(mutex_);
    const auto it = newest_.find(request_id);
    if (it == newest_.end()) return std::nullopt;
    record = records_[it->second - records_.front().number];
  }
  const auto times_json = [](const Times& times) {
    json object = json::object();
    for (const auto& [name, at] : times) object[name] = at;
    return object;
  };
  json attempts = json::array();
  for (const Attempt& attempt : record.attempts) {
    json landed = json::array();
    for (const auto& [at_us, bytes] : attempt.landed) landed.push_back({at_us, bytes});
    attempts.push_back({{"transfer", hex(attempt.transfer.value)},
                        {"path", attempt.path},
                        {"prefill", attempt.prefill},
                        {"decode", attempt.decode},
                        {"reason", attempt.reason},
                        {"outcome", attempt.outcome},
                        {"resumed", attempt.resumed},
                        {"predicted_ttft_ms", attempt.predicted_ttft_ms},
                        {"predicted_ttft_bound_ms", attempt.predicted_ttft_bound_ms},
                        {"ttft_ms", attempt.ttft_ms},
                        {"prompt_tokens", attempt.prompt_tokens},
                        {"cached_tokens", attempt.cached_tokens},
                        {"computed_tokens", attempt.computed_tokens},
                        {"kv_bytes", attempt.kv_bytes},
                        {"kv_landed", landed},
                        {"times_us", times_json(attempt.times)}});
  }
  // The whole request's times are its own, then those of its first attempt.
  json times = times_json(record.times);
  if (!record.attempts.empty())
    for (const auto& [name, at] : record.attempts.front().times)
      if (name != "ended" && !times.contains(name)) times[name] = at;
  json whole = {{"id", record.id},
                {"endpoint", record.endpoint},
                {"outcome", record.outcome},
                {"status", record.status},
                {"prompt_tokens", record.prompt_tokens},
                {"completion_tokens", record.completion_tokens},
                {"times_us", times},
                {"attempts", attempts},
                {"attempts_left_out", record.attempts_left_out}};
  if (!record.attempts.empty()) {
    const Attempt& first = record.attempts.front();
    whole["path"] = first.path;
    whole["prefill"] = first.prefill;
    whole["decode"] = first.decode;
    whole["predicted_ttft_ms"] = first.predicted_ttft_ms;
    whole["predicted_ttft_bound_ms"] = first.predicted_ttft_bound_ms;
    whole["ttft_ms"] = first.ttft_ms;
    whole["kv_bytes"] = first.kv_bytes;
    whole["kv_landed"] = attempts.front()["kv_landed"];
  }
  return whole.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace tandem::router

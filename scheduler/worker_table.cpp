#include "scheduler/worker_table.h"

#include <algorithm>

namespace tandem::scheduler {
namespace {

// Before any worker has measured itself. The order between equal workers does not depend on it.
constexpr double kUnmeasuredUsPerToken = 100.0;

void apply_report(Worker& worker, const WorkerState& state) {
  worker.state = state;
  worker.prefill_tokens.report(state.prefill_backlog_tokens);
  worker.kv_tokens.report(state.kv_tokens_used + state.kv_tokens_reserved);
  worker.slots_busy.report(state.slots - state.slots_free);
}

}  // namespace

int64_t Level::value() const {
  return std::max(own_, std::max<int64_t>(0, reported_ + since_report_));
}

bool Worker::fits(const DecodeShare& share) const {
  return kv_tokens.value() + share.kv_tokens <= state.kv_tokens_capacity &&
         slots_busy.value() + share.slots <= state.slots;
}

bool Worker::could_ever_fit(const DecodeShare& share) const {
  return share.kv_tokens <= state.kv_tokens_capacity && share.slots <= state.slots;
}

double Worker::fullness_with(const DecodeShare& share) const {
  const double kv = static_cast<double>(kv_tokens.value() + share.kv_tokens) /
                    static_cast<double>(std::max<int64_t>(1, state.kv_tokens_capacity));
  const double slots = static_cast<double>(slots_busy.value() + share.slots) /
                       static_cast<double>(std::max(1, state.slots));
  return std::max(kv, slots);
}

void WorkerTable::join(WorkerIndex index, const WorkerState& state) {
  TANDEM_CHECK(index >= 0, "worker index below 0");
  if (index >= size()) workers_.resize(static_cast<size_t>(index) + 1);
  Worker& worker = at(index);
  TANDEM_CHECK(!worker.present, "worker index joined twice");
  worker = Worker{};
  worker.present = true;
  worker.generation = ++generations_;
  apply_report(worker, state);
}

void WorkerTable::update(WorkerIndex index, const WorkerState& state) {
  TANDEM_CHECK(index >= 0 && index < size() && at(index).present, "update of an absent worker");
  apply_report(at(index), state);
}

void WorkerTable::leave(WorkerIndex index) {
  TANDEM_CHECK(index >= 0 && index < size() && at(index).present, "an absent worker left");
  at(index) = Worker{};
}

Worker* WorkerTable::find(WorkerIndex index, uint64_t generation) {
  if (index < 0 || index >= size()) return nullptr;
  Worker& worker = at(index);
  return worker.present && worker.generation == generation ? &worker : nullptr;
}

double WorkerTable::prefill_us_per_token(const Worker& worker) const {
  if (worker.state.prefill_us_per_token > 0) return worker.state.prefill_us_per_token;
  double sum = 0;
  int measured = 0;
  for (const Worker& other : workers_) {
    if (!other.present || other.state.prefill_us_per_token <= 0) continue;
    sum += other.state.prefill_us_per_token;
    ++measured;
  }
  return measured > 0 ? sum / measured : kUnmeasuredUsPerToken;
}

double WorkerTable::prefill_drain_seconds(int64_t queued_tokens) const {
  int64_t tokens = queued_tokens;
  double tokens_per_second = 0;
  const bool dedicated = std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.present && worker.state.accepting && serves_prefill(worker.state.role);
  });
  for (const Worker& worker : workers_) {
    if (!worker.present || !worker.state.accepting) continue;
    if (dedicated && !serves_prefill(worker.state.role)) continue;
    tokens += worker.prefill_tokens.value();
    tokens_per_second += 1e6 / prefill_us_per_token(worker);
  }
  return tokens_per_second > 0 ? static_cast<double>(tokens) / tokens_per_second : 0;
}

double WorkerTable::decode_drain_seconds(int64_t tokens) const {
  double tokens_per_second = 0;
  for (const Worker& worker : workers_) {
    if (!worker.present || !worker.state.accepting || !serves_decode(worker.state.role)) continue;
    if (worker.state.decode_step_ms > 0)
      tokens_per_second += worker.state.slots * 1000.0 / worker.state.decode_step_ms;
  }
  return tokens_per_second > 0 ? static_cast<double>(tokens) / tokens_per_second : 0;
}

}  // namespace tandem::scheduler

#include "router/stages.h"

#include <algorithm>

namespace tandem::router {
namespace {

constexpr std::array<std::string_view, kStageCount> kNames = {
    "received", "tokenised", "queued", "prefill", "stream", "land", "join", "decode", "write"};
constexpr std::array<std::string_view, kStageCount> kReasons = {
    "stage_received", "stage_tokenised", "stage_queued", "stage_prefill", "stage_stream",
    "stage_land",     "stage_join",      "stage_decode", "stage_write"};
constexpr std::array kDispatched = {Stage::kPrefill, Stage::kStream, Stage::kLand, Stage::kJoin,
                                    Stage::kDecode};

}  // namespace

std::string_view stage_name(Stage stage) { return kNames[static_cast<size_t>(stage)]; }
std::string_view stage_reason(Stage stage) { return kReasons[static_cast<size_t>(stage)]; }

Stages::Stages(const Config& config) {
  const StagesConfig& limits = config.stages;
  const std::array configured = {limits.received, limits.tokenised, config.scheduler.queue_max,
                                 limits.prefill,  limits.stream,    limits.land,
                                 limits.join,     limits.decode,    limits.write};
  for (size_t i = 0; i < kStageCount; ++i) {
    Cell& cell = cells_[i];
    const metrics::Labels labels{{"stage", std::string(kNames[i])}};
    cell.configured = configured[i];
    cell.depth_gauge = metrics::gauge("tandem_stage_depth", "How many are in the stage", labels);
    cell.limit_gauge = metrics::gauge(
        "tandem_stage_limit", "How many may be: the configuration's or the workers' limit", labels);
    cell.arrivals = metrics::counter("tandem_stage_arrivals_total", "How many came", labels);
    cell.served =
        metrics::counter("tandem_stage_served_total", "How many went on to the next", labels);
    cell.seconds = metrics::histogram("tandem_stage_service_seconds", "How long those took",
                                      metrics::kLatencyBounds, labels);
    cell.limit_gauge.set(cell.configured);
  }
}

bool Stages::try_enter(Stage stage, int count) {
  if (depth(stage) + count > limit(stage)) return false;
  enter(stage, count);
  return true;
}

void Stages::enter(Stage stage, int count) {
  Cell& cell = at(stage);
  cell.depth.fetch_add(count, std::memory_order_relaxed);
  cell.depth_gauge.add(count);
  cell.arrivals.add(count);
}

void Stages::serve(Stage stage, Duration spent) {
  Cell& cell = at(stage);
  cell.served.add();
  cell.seconds.observe(to_seconds(spent));
  drop(stage);
}

void Stages::drop(Stage stage, int count) {
  Cell& cell = at(stage);
  cell.depth.fetch_sub(count, std::memory_order_relaxed);
  cell.depth_gauge.add(-count);
}

int Stages::limit(Stage stage) const {
  const int capacity = at(stage).capacity.load(std::memory_order_relaxed);
  return capacity > 0 ? std::min(at(stage).configured, capacity) : at(stage).configured;
}

void Stages::set_capacity(int prefill_slots, int decode_slots) {
  for (const Stage stage : kDispatched) {
    at(stage).capacity.store(stage == Stage::kPrefill ? prefill_slots : decode_slots,
                             std::memory_order_relaxed);
    at(stage).limit_gauge.set(limit(stage));
  }
}

// By the configured limits: what the workers can hold is the scheduler's business.
std::optional<Stage> Stages::full() const {
  if (depth(Stage::kWrite) >= at(Stage::kWrite).configured) return Stage::kWrite;
  std::optional<Stage> found;
  int before = 0;
  for (const Stage stage : kDispatched) {
    before += depth(stage);
    if (before >= at(stage).configured) found = stage;
  }
  return found;
}

Stage Stages::fullest() const {
  if (depth(Stage::kWrite) >= at(Stage::kWrite).configured) return Stage::kWrite;
  Stage fullest = Stage::kQueued;
  double most = 0;
  for (const Stage stage : kDispatched) {
    const double use = static_cast<double>(depth(stage)) / std::max(1, limit(stage));
    if (use < most || depth(stage) == 0) continue;
    fullest = stage;
    most = use;
  }
  return fullest;
}

}  // namespace tandem::router

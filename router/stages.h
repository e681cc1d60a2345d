// Stages: how many requests are in each stage of the pipeline, how fast they come and go, and when
// one stage is full.
//
// Owned by the router; any thread. Received, tokenised and write count requests (or prompts) of the
// flows; queued to decode count attempts, which the dispatcher moves. What is dispatched cannot be
// held up any more, so a stage from prefill on is full when it and those before it, from prefill
// on, hold as much as its limit: then the dispatcher lets nothing pass, the queue fills, and the
// door refuses in the name of the stage that holds most.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/config.h"
#include "common/metrics.h"

namespace tandem::router {

enum class Stage {
  kReceived,   // Being parsed and tokenised
  kTokenised,  // Not with the scheduler yet
  kQueued,     // Waits for workers
  kPrefill,    // Commanded, prompt not computed
  kStream,     // Computed, KV on its way
  kLand,       // Arrived, not in the cache
  kJoin,       // In the cache, not in the batch
  kDecode,     // Generates tokens
  kWrite,      // The client has not taken what was written
};
inline constexpr size_t kStageCount = 9;

std::string_view stage_name(Stage stage);
// Label of refusals: "stage_prefill".
std::string_view stage_reason(Stage stage);

class Stages {
 public:
  explicit Stages(const Config& config);

  // False, and nothing entered, when there is no room for `count` more.
  bool try_enter(Stage stage, int count = 1);
  void enter(Stage stage, int count = 1);
  // Served after `spent`, or given up.
  void serve(Stage stage, Duration spent);
  void drop(Stage stage, int count = 1);

  int depth(Stage stage) const { return at(stage).depth.load(std::memory_order_relaxed); }
  int limit(Stage stage) const;
  // What the workers that are there can hold; a limit beyond that is none.
  void set_capacity(int prefill_slots, int decode_slots);
  // The last stage on an attempt's way that is full.
  std::optional<Stage> full() const;
  // The stage on an attempt's way that holds most, measured by its limit; the queue when none holds
  // anything.
  Stage fullest() const;

 private:
  struct Cell {
    std::atomic<int> depth{0};
    int configured = 0;
    std::atomic<int> capacity{0};  // 0: not known
    metrics::Gauge depth_gauge, limit_gauge;
    metrics::Counter arrivals, served;
    metrics::Histogram seconds;
  };
  Cell& at(Stage stage) { return cells_[static_cast<size_t>(stage)]; }
  const Cell& at(Stage stage) const { return cells_[static_cast<size_t>(stage)]; }

  std::array<Cell, kStageCount> cells_;
};

}  // namespace tandem::router

// Services: what every request needs of the router. Owned by the router, outlives every request.
#pragma once

#include <atomic>
#include <string>

#include "common/clock.h"
#include "common/config.h"
#include "engine/tokenizer.h"
#include "router/dispatcher.h"
#include "router/prepare.h"
#include "router/router_metrics.h"
#include "router/stages.h"
#include "router/timeline.h"
#include "router/work_threads.h"
#include "router/worker_pool.h"

namespace tandem::router {

struct Services {
  const Config& config;
  const Clock& clock;
  const Tokenizer& tokenizer;
  const Preparer& preparer;
  WorkThreads& work_threads;
  WorkerPool& pool;
  Dispatcher& dispatcher;
  Timeline& timeline;
  Stages& stages;
  const RouterMetrics& metrics;
  std::string model;             // The served name
  int64_t created = 0;           // Of the model, for /v1/models
  std::atomic<int> requests{0};  // Inside the router
  std::atomic<bool> draining{false};
};

}  // namespace tandem::router

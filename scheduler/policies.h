// The policies behind make_scheduler(). Pure; each object belongs to one thread.
#pragma once

#include <memory>

#include "scheduler/scheduler.h"

namespace tandem::scheduler {

// "least_backlog", "static_split" (the same; roles stay as they are) and "round_robin".
std::unique_ptr<Scheduler> make_first_policy(const Config& config);
// "slack": by predicted times and targets.
std::unique_ptr<Scheduler> make_slack_policy(const Config& config);

}  // namespace tandem::scheduler

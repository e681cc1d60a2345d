#include "scheduler/scheduler.h"

#include "scheduler/policies.h"

namespace tandem::scheduler {

std::unique_ptr<Scheduler> make_scheduler(const Config& config) {
  return config.scheduler.policy == "slack" ? make_slack_policy(config) : make_first_policy(config);
}

}  // namespace tandem::scheduler

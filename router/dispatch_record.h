// Private to the dispatcher: the hand-off record of an attempt, which says who holds what for it,
// and the events of one frame on their way to the flows. Link thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "router/dispatcher.h"
#include "scheduler/decision_log.h"

namespace tandem::router {

struct Dispatcher::Attempt {
  AttemptSpec spec;
  scheduler::Decision decision;
  WorkerKey prefill;
  WorkerKey decode;
  bool granted = false;     // The scheduler holds shares for it
  bool dispatched = false;  // Workers were commanded
  bool prompt_done = false;
  bool joined = false;  // The decode worker has all it needs: the prefill worker no longer matters
  std::vector<bool> done;  // Per choice
  int open = 0;            // Choices that are not done
  // Tokens that overtook the end of the prefill, which comes over another link. The decode worker
  // cannot be further ahead than that link's delay.
  std::vector<link::TokenEntry> held;
  Stage stage = Stage::kQueued;
  TimePoint stage_since{};
  TimePoint queued_at{};
  TimePoint dispatched_at{};
  TimePoint quiet_until{};  // Phase deadline
  TimePoint first_token_at{};
  TimePoint last_token_at{};
  int64_t tokens_out = 0;                             // All choices
  std::unique_ptr<scheduler::DecisionRecord> record;  // With a decision log

  TransferId transfer() const { return spec.leg.transfer; }
  scheduler::Path path() const { return decision.path; }
  bool remote() const { return decision.path == scheduler::Path::kRemote; }
  WorkerKey prompt_worker() const { return prefill.index >= 0 ? prefill : decode; }
};

// Events of one frame, gathered per I/O thread: one wake-up of a thread per decode step, not per
// token.
struct Dispatcher::Outbox {
  std::vector<std::pair<boost::asio::io_context*, Mailbox::Batch>> batches;

  void add(const std::shared_ptr<Mailbox>& mailbox, AttemptEvent event) {
    for (auto& [io, batch] : batches) {
      if (io != &mailbox->io()) continue;
      batch.emplace_back(mailbox, std::move(event));
      return;
    }
    batches.emplace_back(&mailbox->io(), Mailbox::Batch{});
    batches.back().second.emplace_back(mailbox, std::move(event));
  }
  ~Outbox() {
    for (auto& [io, batch] : batches) Mailbox::deliver(*io, std::move(batch));
  }
};

}  // namespace tandem::router

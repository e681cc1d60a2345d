// Attempt: one try to answer one prompt (all its choices, or the one that is resumed) on one choice
// of workers. This is what request flows ask of the dispatcher and what they hear back. Plain
// values; the name of an attempt is its TransferId, fresh for every one, so that nothing of an
// earlier try can be taken for it.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "link/messages.h"
#include "scheduler/scheduler.h"

namespace tandem::router {

class Mailbox;

// A worker in one of its lives.
struct WorkerKey {
  scheduler::WorkerIndex index = -1;
  Epoch epoch;
  bool operator==(const WorkerKey&) const = default;
};

struct AttemptSpec {
  std::shared_ptr<Mailbox>
      mailbox;    // Shared: the flow may end before the dispatcher has heard of it
  link::Leg leg;  // With the transfer id; deadline_ms is filled in at dispatch
  // What is asked of the scheduler: objectives, tenant, blocks, deadline. The dispatcher fills in
  // sizes and whom to avoid.
  scheduler::Request request;
  bool resumed = false;
  std::vector<WorkerKey> avoid;
  uint64_t generation = 0;  // Of the model that said what `leg` repeats; 0: nothing is repeated
  uint64_t timeline = 0;    // The request's record
};

// Workers were chosen and commanded.
struct Dispatched {
  scheduler::Path path = scheduler::Path::kRefuse;
  std::string prefill;  // Names; empty where the path has none
  std::string decode;
  std::string reason;
  double predicted_ttft_ms = 0;
  uint64_t generation = 0;  // Of the model
};

// The prompt is computed.
struct PromptDone {
  std::vector<SampledToken> first;  // One per choice; empty when they come as tokens
  int cached_tokens = 0;
};

struct TokenArrived {
  int choice = 0;
  SampledToken sampled;
};

// The attempt is over without an answer; both legs are cancelled and its shares are free.
struct AttemptFailed {
  Status status;
  bool retryable = true;
  bool excused = false;  // The worker changes its role, or drains: no loss, nobody's fault
  std::string phase;     // "prefill" | "decode"
  std::vector<WorkerKey> culprits;
};

// The scheduler's, for reasons that the whole router knows.
struct Refused {
  scheduler::Decision decision;
  std::string_view stage;  // stage_reason() of the stage that holds most
};

struct AttemptEvent {
  TransferId attempt;
  std::variant<Dispatched, Refused, PromptDone, TokenArrived, AttemptFailed> what;
};

}  // namespace tandem::router

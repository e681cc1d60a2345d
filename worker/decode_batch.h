// DecodeBatch: one step of continuous batching over all legs that run, and what their routers hear
// of it.
//
// Owned by DecodeWork, engine thread only.
#pragma once

#include <functional>
#include <vector>

#include "worker/decode_leg.h"

namespace tandem::worker {

class DecodeBatch {
 public:
  using FailLeg = std::function<void(DecodeLeg&, const Status&)>;

  DecodeBatch(const WorkContext& context, DecodeLegs& legs, FailLeg fail);

  // One token for every choice that runs and whose router reads. False: there was none.
  bool step();
  // Some leg waits for its router to read.
  bool paused() const { return paused_; }
  double step_ms() const { return step_ms_.value(); }

 private:
  struct Row {
    DecodeLeg* leg = nullptr;
    DecodeChoice* choice = nullptr;
    int index = 0;
  };

  std::vector<Row> collect();
  bool router_reads(DecodeLeg& leg, TimePoint now);
  void sample(const std::vector<Row>& rows);
  // What the step tells the pacer and the routers' cost models.
  void measure(int sequences, int64_t context_tokens, Duration busy);

  const WorkContext& context_;
  DecodeLegs& legs_;
  const FailLeg fail_;
  Smoothed step_ms_;
  uint64_t steps_ = 0;
  bool paused_ = false;
};

}  // namespace tandem::worker

// LocalPrompt: runs prompts on the decode worker itself, a chunk at a time between decode steps,
// first come first served. The first choice's sequence computes; the others get its rows, chunk by
// chunk, which is bit for bit what computing them again would give.
//
// Owned by DecodeWork, engine thread only.
#pragma once

#include <functional>

#include "worker/decode_leg.h"

namespace tandem::worker {

class LocalPrompt {
 public:
  using FailLeg = std::function<void(DecodeLeg&, const Status&)>;

  LocalPrompt(const WorkContext& context, DecodeLegs& legs, FailLeg fail);

  // Runs one chunk of the first leg that has a prompt to run, if it may start. True: there is more
  // to do at once.
  bool advance();
  // The next chunk may not start before; TimePoint::max(): none is held.
  TimePoint held_until() const { return held_until_; }
  double us_per_token() const { return us_per_token_.value(); }

 private:
  DecodeLeg* next();
  Status start(DecodeLeg& leg);
  Status run_chunk(DecodeLeg& leg);
  Status copy_rows(DecodeLeg& leg, const Chunk& chunk);
  Status finish(DecodeLeg& leg);

  const WorkContext& context_;
  DecodeLegs& legs_;
  const FailLeg fail_;
  Smoothed us_per_token_;
  TimePoint held_until_ = TimePoint::max();
  std::vector<std::byte> rows_;  // On their way from one sequence to another
};

}  // namespace tandem::worker

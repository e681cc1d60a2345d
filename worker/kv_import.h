// KvImport: moves landed rows from the Receiver's landing memory into the engine's sequences, in
// slices that fit between decode steps.
//
// Owned by DecodeWork, engine thread only. Every unit taken from the Receiver is consumed() here or
// settled by the finish() of its transfer.
#pragma once

#include <deque>
#include <functional>

#include "worker/decode_leg.h"

namespace tandem::worker {

class KvImport {
 public:
  using FailLeg = std::function<void(DecodeLeg&, const Status&)>;

  KvImport(const WorkContext& context, transfer::Receiver& receiver, DecodeLegs& legs,
           FailLeg fail);

  // Works for about `budget`. True: more could be done at once.
  bool advance(Duration budget);
  transfer::Receiver& receiver() const { return receiver_; }
  // The leg's transfer ends: its units will not be touched again.
  void forget(TransferId transfer);

 private:
  bool import_one();
  bool reserve_ahead();
  Status check(const DecodeLeg& leg, const transfer::LandedUnit& unit) const;
  Status reserve_slice(DecodeLeg& leg);
  Status write(DecodeLeg& leg, const transfer::LandedUnit& unit);

  Engine& engine_;
  const Clock& clock_;
  transfer::Receiver& receiver_;
  DecodeLegs& legs_;
  const FailLeg fail_;
  std::deque<transfer::LandedUnit> taken_;
};

}  // namespace tandem::worker

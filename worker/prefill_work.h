// PrefillWork: a prefill worker's legs, in the order they came.
//
// A leg waits (kQueued) until one of the engine's sequences is free, then takes it and asks the
// decode worker for landing room (kOpening). Once granted it is kReady; one leg at a time computes.
// When its first tokens are out, its rows stay (kTail) until the transfer's terminal event, while
// the next leg computes. A leg that ends early with an open transfer is kAborting until that has
// quiesced: rows must not change before.
#pragma once

#include <list>
#include <optional>

#include "engine/chunk_grid.h"
#include "worker/leg.h"
#include "worker/role_work.h"

namespace tandem::worker {

class PrefillWork final : public RoleWork {
 public:
  PrefillWork(const WorkContext& context, transfer::Sender* sender, PrefillFailed on_failed);

  void on_prefill(PrefillArrived message) override;
  void on_decode(DecodeArrived message) override;
  void on_cancel(const CancelArrived& message) override;
  void on_router_gone(const link::Session* router) override;
  void on_transfer(TransferChanged message) override;
  void set_draining(bool draining) override { draining_ = draining; }
  void end_all(const Status& reason) override;
  bool advance() override;
  TimePoint next_wakeup() const override;
  bool idle() const override { return legs_.empty(); }
  void fill(link::Load& load) const override;

 private:
  enum class State { kQueued, kOpening, kReady, kComputing, kStopped, kTail, kAborting };
  struct PrefillLeg {
    link::SessionPtr router;
    link::PrefillCommand command;
    TimePoint deadline{};
    State state = State::kQueued;
    std::optional<SeqId> sequence;
    std::shared_ptr<transfer::OutgoingStream> stream;  // Until its terminal event
    std::vector<Chunk> grid;
    size_t next_chunk = 0;
    int64_t started_us = 0;

    const link::Leg& leg() const { return command.leg; }
    int64_t uncomputed() const;
  };
  using Legs = std::list<PrefillLeg>;

  Status admit(const PrefillArrived& message) const;
  Legs::iterator find(TransferId transfer);
  void activate_queued();
  void open_stream(PrefillLeg& leg);
  Legs::iterator choose();
  void tell_failed(link::Session& router, const link::Leg& leg, const Status& reason) const;
  void run_chunk(Legs::iterator leg);
  void finish_prompt(Legs::iterator leg);
  Result<std::vector<SampledToken>> sample_first(PrefillLeg& leg);
  void check_ends(TimePoint now);
  // The one way out before an answer. Null `reason`: the router knows already.
  void fail(Legs::iterator leg, const Status& reason, bool tell);
  // The one release: sequence, record, event.
  void release(Legs::iterator leg);

  const WorkContext context_;
  transfer::Sender* const sender_;
  const PrefillFailed on_failed_;
  Legs legs_;
  bool draining_ = false;
  TimePoint held_until_{};  // The next chunk may not start before; zero: it may
  Smoothed us_per_token_;
};

}  // namespace tandem::worker

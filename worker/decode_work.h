// DecodeWork: the legs of a decode worker, a coupled worker or a partitioned worker's decode half.
// A leg's slots and positions are promised when its command is accepted; rows come from a prefill
// worker, from the other half or from running the prompt here; then it joins the running batch.
// release() is the one place where a leg's sequences, transfer and record are given back.
#pragma once

#include "worker/decode_batch.h"
#include "worker/decode_leg.h"
#include "worker/kv_import.h"
#include "worker/local_prompt.h"

namespace tandem::worker {

class DecodeWork final : public RoleWork {
 public:
  DecodeWork(const WorkContext& context, const Receivers& receivers);

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
  bool has(TransferId transfer) { return find_leg(legs_, transfer) != nullptr; }

 private:
  Status admit(const link::DecodeCommand& command);
  int slots_free() const;
  Status expect(DecodeLeg& leg);
  void follow_transfers();
  Status follow(DecodeLeg& leg);
  Status join(DecodeLeg& leg, const transfer::IncomingProgress& progress);
  void tell_progress(DecodeLeg& leg, const transfer::IncomingProgress& progress);
  void release_done();
  void check_ends(TimePoint now);
  bool running() const;

  // Ends a leg whose router does not know yet.
  void fail(DecodeLeg& leg, const Status& reason);
  void release(DecodeLeg& leg, const Status& outcome);

  const WorkContext context_;
  const Receivers receivers_;
  DecodeLegs legs_;
  LocalPrompt prompts_;
  DecodeBatch batch_;
  std::list<KvImport> imports_;  // One for each receiver
  bool draining_ = false;
};

}  // namespace tandem::worker

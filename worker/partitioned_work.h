// PartitionedWork: a worker with one copy of the weights and two contexts. This thread decodes; a
// second one, with an engine of its own on the same weights, runs prompts. A local command becomes
// a leg in both halves, and its rows cross within the process as any other transfer's do; the
// prefill half also serves decode workers elsewhere, and the decode half other prefill workers.
//
// Owned by the EngineLoop, which is the decode half's thread. The prefill half's thread lives as
// long as this.
#pragma once

#include <boost/asio/io_context.hpp>
#include <thread>

#include "worker/decode_work.h"
#include "worker/engine_loop.h"
#include "worker/processors.h"

namespace tandem::worker {

class PartitionedWork final : public RoleWork {
 public:
  struct Parts {
    std::unique_ptr<Engine> prefill_engine;
    transfer::Sender* sender = nullptr;
    Receivers receivers;
    Partition partition;
    const link::Hello& self;  // How the prefill half finds the decode half
  };

  PartitionedWork(boost::asio::io_context& io, const WorkContext& context, Parts parts);
  ~PartitionedWork() override;

  void on_prefill(PrefillArrived message) override { inbox_.push(std::move(message)); }
  void on_decode(DecodeArrived message) override;
  void on_cancel(const CancelArrived& message) override;
  void on_router_gone(const link::Session* router) override;
  void on_transfer(TransferChanged message) override { decode_.on_transfer(std::move(message)); }
  void set_draining(bool draining) override;
  void end_all(const Status& reason) override;
  bool advance() override;
  TimePoint next_wakeup() const override { return decode_.next_wakeup(); }
  bool idle() const override { return decode_.idle() && loop_.idle(); }
  void fill(link::Load& load) const override { decode_.fill(load); }

 private:
  const WorkContext context_;
  const Parts parts_;
  const std::vector<int> processors_;  // Of this thread before
  bool placed_ = false;
  DecodeWork decode_;

  // The prefill half. Its Inbox orders what this thread tells it; its AbortSwitch is told after.
  Inbox inbox_;
  AbortSwitch abort_switch_;
  EngineLoop loop_;
  std::thread thread_;
};

}  // namespace tandem::worker

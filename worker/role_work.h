// RoleWork: what a worker of one role does on its engine thread. EngineLoop calls it; nothing else
// does.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/config.h"
#include "engine/engine.h"
#include "link/messages.h"
#include "transfer/stream.h"
#include "worker/abort_switch.h"
#include "worker/chunk_pacer.h"
#include "worker/inbox.h"
#include "worker/load_report.h"

namespace tandem::worker {

// Everything that work needs. Outlives it.
struct WorkContext {
  const Config& config;
  std::string name;
  Role role = Role::kDecode;
  Engine& engine;
  Inbox& inbox;
  AbortSwitch& abort_switch;
  LoadReport& report;
  ChunkPacer& pacer;
  const Clock& clock;
};

class RoleWork {
 public:
  virtual ~RoleWork() = default;
  virtual void on_prefill(PrefillArrived message) = 0;
  virtual void on_decode(DecodeArrived message) = 0;
  virtual void on_cancel(const CancelArrived& message) = 0;
  virtual void on_router_gone(const link::Session* router) = 0;
  virtual void on_transfer(TransferChanged message) = 0;
  virtual void set_draining(bool draining) = 0;
  // Ends every leg with the reason. Legs whose transfers must quiesce first stay until they have.
  virtual void end_all(const Status& reason) = 0;

  // Does a bounded piece of work: at most a chunk and a step. True: there is more to do at once.
  virtual bool advance() = 0;
  // When advance() must be called again without a message.
  virtual TimePoint next_wakeup() const = 0;
  virtual bool idle() const = 0;
  virtual void fill(link::Load& load) const = 0;
};

// Where rows come from. Null in workers that take none of that kind.
struct Receivers {
  transfer::Receiver* remote = nullptr;  // Prefill workers
  transfer::Receiver* own = nullptr;     // The other half of this worker: prompts run there
};

// `on_failed`: told of every leg that fails before it has an answer, when its router is; may be
// empty.
using PrefillFailed = std::function<void(TransferId, const Status&)>;
std::unique_ptr<RoleWork> make_prefill_work(const WorkContext& context, transfer::Sender* sender,
                                            PrefillFailed on_failed = {});
std::unique_ptr<RoleWork> make_decode_work(const WorkContext& context, const Receivers& receivers);

// A smoothed rate; 0 before the first sample.
class Smoothed {
 public:
  void add(double sample) { value_ = value_ == 0 ? sample : value_ + 0.2 * (sample - value_); }
  double value() const { return value_; }

 private:
  double value_ = 0;
};

}  // namespace tandem::worker

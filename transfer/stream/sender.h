// The Sender of stream.h. Private to transfer/; see there for threads and lifetime.
//
// One mutex guards everything; puts, checksums, users, sessions and transports are called without
// it. One thread at a time pumps a stream (Outgoing::pumping), so that its units stay in order. Its
// own thread pumps what the engine thread does not: network transports, and units that waited for
// room.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "common/unique_fd.h"
#include "transfer/delivery_queue.h"
#include "transfer/stream/actions.h"
#include "transfer/stream/busy_polling.h"
#include "transfer/stream/outgoing.h"

namespace tandem::transfer {

class SenderCore : public std::enable_shared_from_this<SenderCore> {
 public:
  SenderCore(boost::asio::io_context& io, const link::LinkContext& link, const Config& config,
             const KvLayout& layout, std::vector<Transport*> transports);
  void start();
  void stop();

  std::shared_ptr<OutgoingStream> open(const OpenRequest& request, OutgoingEvents events);
  void push(const OutgoingPtr& stream, const LayerRows& rows);
  void seal(const OutgoingPtr& stream, SealInfo info);
  void abort(const OutgoingPtr& stream, Status reason);
  void progress();
  int streams_open() const;
  TransferTotals totals() const;

 private:
  // sender_session.cpp: peers, sessions, frames. With `after`: the mutex is held.
  void connect(Actions& after, const std::shared_ptr<PeerLink>& peer);
  void dial(const std::shared_ptr<PeerLink>& peer, uint64_t generation);
  void on_session_open(const std::shared_ptr<PeerLink>& peer, uint64_t generation,
                       const link::SessionPtr& session);
  void on_session_close(const std::shared_ptr<PeerLink>& peer, uint64_t generation,
                        const Status& reason);
  void on_frame(const std::shared_ptr<PeerLink>& peer, uint64_t generation, link::FrameKind kind,
                std::string_view body);
  void on_granted(const OutgoingPtr& stream, const GrantedMessage& granted);
  void on_done(Actions& after, const OutgoingPtr& stream);
  void on_credit(const Credit& credit);
  Result<std::shared_ptr<RemoteSegment>> attach(const OutgoingPtr& stream,
                                                const GrantedMessage& granted,
                                                std::shared_ptr<Path>& path);
  void send_open(Actions& after, const OutgoingPtr& stream);
  void send_seal(Actions& after, const OutgoingPtr& stream);
  void send(Actions& after, const link::SessionPtr& session, link::FrameKind kind,
            std::string body);
  OutgoingPtr find(const std::shared_ptr<PeerLink>& peer, TransferId transfer) const;

  // sender_pump.cpp: moving units. The mutex is not held.
  void pump(const OutgoingPtr& stream);
  Status write_unit(const Outgoing& stream, PendingUnit& pending);
  Status announce(const OutgoingPtr& stream, std::vector<Unit> units);
  void on_announced(const OutgoingPtr& stream, const Status& status);
  void run();
  bool pump_runnable();
  void wait_for_events();
  void wake();
  // Requires: the mutex is held.
  bool announcement_due(const Outgoing& stream) const;
  void mark_runnable(const OutgoingPtr& stream);
  void queue_rows(Outgoing& stream, const LayerRows& rows, KvPart part);

  // sender.cpp: how streams end, and time. Requires: the mutex is held.
  void abort_stream(Actions& after, const OutgoingPtr& stream, Status reason, bool tell_peer);
  void settle(Actions& after, const OutgoingPtr& stream);
  void end(Actions& after, const OutgoingPtr& stream, Status outcome);
  void add_terminal_event(Actions& after, std::function<void()> event);
  static void release_path(const OutgoingPtr& stream);
  void break_path(Actions& after, const std::shared_ptr<Path>& path, const Status& reason);
  void check_deadlines(Actions& after, const OutgoingPtr& stream, TimePoint now);
  std::vector<OutgoingPtr> all_streams() const;
  void tick();
  void arm_timer();

  boost::asio::io_context& io_;
  const link::LinkContext& link_;
  const TransferConfig config_;
  const Duration connect_deadline_;
  const KvLayout layout_;
  const std::string layout_digest_;
  const std::vector<Transport*> transports_;
  const Clock& clock_ = SystemClock::get();
  const ProcessIdentity process_ = ProcessIdentity::self();

  mutable std::mutex mutex_;
  std::condition_variable ended_;  // A stream has
  // Everything below is guarded by mutex_.
  bool stopped_ = false;
  bool stopping_thread_ = false;
  std::map<std::string, std::shared_ptr<PeerLink>> peers_;  // By listen address
  std::unordered_map<TransferId, OutgoingPtr> streams_;
  std::vector<OutgoingPtr> runnable_;
  int events_running_ = 0;  // Terminal events that stop() waits for
  TransferTotals totals_;

  DeliveryQueue frames_;  // Own lock: frames leave in the order in which they were queued
  boost::asio::steady_timer timer_;  // The io_context thread only
  BusyPolling polled_;               // progress(), by the engine thread
  UniqueFd wake_;
  std::thread thread_;
};

}  // namespace tandem::transfer

// The Receiver of stream.h. Private to transfer/; see there for threads and lifetime.
//
// One mutex guards everything; checksums are computed and users, sessions and transports called
// without it.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "transfer/delivery_queue.h"
#include "transfer/stream.h"
#include "transfer/stream/actions.h"
#include "transfer/stream/event_watch.h"
#include "transfer/stream/grant_queue.h"
#include "transfer/stream/incoming.h"

namespace tandem::transfer {

class ReceiverCore : public std::enable_shared_from_this<ReceiverCore> {
 public:
  ReceiverCore(boost::asio::io_context& io, const Config& config, const KvLayout& layout,
               std::vector<Transport*> transports, SegmentPool pool);
  void start();
  void stop();

  Status expect(const Expectation& expectation, IncomingEvents events);
  std::vector<LandedUnit> take(size_t bytes_max);
  void consumed(const LandedUnit& unit);
  IncomingProgress progress_of(TransferId transfer) const;
  void finish(TransferId transfer, const Status& outcome);
  bool poll();
  int streams_open() const;
  int64_t landing_bytes_used() const;
  TransferTotals totals() const;
  void on_frame(const link::SessionPtr& session, link::FrameKind kind, std::string_view body);
  void on_close(const link::SessionPtr& session, const Status& reason);

 private:
  using IncomingPtr = std::shared_ptr<Incoming>;
  struct Ready {
    IncomingPtr incoming;
    Unit unit;
  };

  // Queues a frame; frames leave in the order in which they were queued.
  void send(Actions& after, const link::SessionPtr& session, link::FrameKind kind,
            std::string body);

  // receiver_grant.cpp: from the announcement to the grant. Requires of all: the mutex is held.
  void on_open(Actions& after, const link::SessionPtr& session, OpenMessage open);
  void match(Actions& after, const IncomingPtr& incoming);
  Status check_open(const Incoming& incoming) const;
  void deny(Actions& after, const link::SessionPtr& session, TransferId transfer, Status reason);
  void grant_waiting(Actions& after);
  void grant(Actions& after, const IncomingPtr& incoming);
  Transport* choose_transport(const OpenMessage& open, std::string& sender_address) const;
  void open_credit_channel(const IncomingPtr& incoming, Transport& transport,
                           const std::string& address);

  // receiver_units.cpp: rows that land.
  void on_message(std::string_view message);
  Status accept_units(Incoming& incoming, const std::vector<Unit>& units);
  void refuse_corrupt(uint64_t ticket);
  void note_landed(Incoming& incoming, const std::vector<Unit>& units);
  void on_seal(Actions& after, const IncomingPtr& incoming, const SealMessage& seal);
  void send_credit(Actions& after, const IncomingPtr& incoming);
  void update_complete(Incoming& incoming);

  // receiver.cpp: how transfers end, and time.
  void fail(Actions& after, const IncomingPtr& incoming, Status reason, bool tell_user = true);
  void forget_ready(const Incoming& incoming);
  void remember_over(TransferId transfer);
  void settle(Actions& after, const IncomingPtr& incoming);
  void on_end_frame(Actions& after, const link::SessionPtr& session, link::FrameKind kind,
                    std::string_view body);
  void tick();
  void check_deadlines(Actions& after, const IncomingPtr& incoming, TimePoint now);
  void arm_timer();
  IncomingPtr find(TransferId transfer) const;
  IncomingPtr find_from(const link::SessionPtr& session, TransferId transfer) const;

  boost::asio::io_context& io_;
  const TransferConfig config_;
  const KvLayout layout_;
  const std::string layout_digest_;
  const std::vector<Transport*> transports_;
  const Clock& clock_ = SystemClock::get();

  mutable std::mutex mutex_;
  // Everything below is guarded by mutex_.
  bool stopped_ = false;
  SegmentPool pool_;
  GrantQueue queue_;
  std::unordered_map<TransferId, IncomingPtr> incoming_;
  std::deque<Ready> ready_;
  std::unordered_map<uint64_t, Ready> taken_;  // By ticket
  uint64_t next_ticket_ = 1;
  std::map<std::pair<const link::Session*, const Transport*>, std::shared_ptr<Channel>>
      credit_channels_;
  TransferTotals totals_;
  // The last ones that ended before a grant: a late OPEN is refused at once.
  std::deque<TransferId> over_;

  DeliveryQueue frames_;  // Own lock

  // Used on the io_context thread only.
  boost::asio::steady_timer timer_;
  std::vector<std::shared_ptr<EventWatch>> watches_;

  BusyPolling polled_;  // poll(), by the engine thread
};

}  // namespace tandem::transfer

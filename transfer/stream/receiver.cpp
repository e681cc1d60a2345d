#include "transfer/stream/receiver.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <future>

#include "common/log.h"
#include "transfer/stream/log_failure.h"

namespace tandem::transfer {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr size_t kOverMax = 256;
constexpr auto kStopDeadline = std::chrono::seconds(1);

}  // namespace

ReceiverCore::ReceiverCore(boost::asio::io_context& io, const Config& config,
                           const KvLayout& layout, std::vector<Transport*> transports,
                           SegmentPool pool)
    : io_(io),
      config_(config.transfer),
      layout_(layout),
      layout_digest_(layout.digest()),
      transports_(std::move(transports)),
      pool_(std::move(pool)),
      queue_(size_t(config.transfer.streams_max)),
      timer_(io) {}

void ReceiverCore::start() {
  for (Transport* transport : transports_) {
    transport->set_message_handler([weak = weak_from_this()](std::string_view message) {
      if (const auto self = weak.lock()) self->on_message(message);
    });
  }
  boost::asio::post(io_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    for (Transport* transport : self->transports_) {
      if (transport->event_fd() < 0) continue;
      self->watches_.push_back(std::make_shared<EventWatch>(self->io_, *transport, self->polled_));
      self->watches_.back()->start();
    }
    self->arm_timer();
  });
}

void ReceiverCore::arm_timer() {
  timer_.expires_after(kTick);
  timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    if (const auto self = weak.lock(); self && !error) self->tick();
  });
}

void ReceiverCore::stop() {
  {
    Actions after;
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    std::vector<IncomingPtr> all;
    for (const auto& [id, incoming] : incoming_) all.push_back(incoming);
    for (const IncomingPtr& incoming : all) {
      fail(after, incoming, Status(ErrorCode::kCancelled, "the worker is stopping"));
    }
    for (auto& [where, channel] : std::exchange(credit_channels_, {})) {
      after.add([closing = channel] { closing->close(); });
    }
  }
  const auto quiet = [self = shared_from_this()] {
    self->timer_.cancel();
    for (const auto& watch : self->watches_) watch->stop();
  };
  if (io_.stopped() || io_.get_executor().running_in_this_thread()) {
    quiet();
  } else {
    // Transports may go as soon as this returns: whatever runs on the io_context thread has to end
    // first.
    const auto ended = std::make_shared<std::promise<void>>();
    boost::asio::post(io_, [quiet, ended] {
      quiet();
      ended->set_value();
    });
    ended->get_future().wait_for(kStopDeadline);
  }
  for (Transport* transport : transports_) transport->set_message_handler(nullptr);
}

ReceiverCore::IncomingPtr ReceiverCore::find(TransferId transfer) const {
  const auto found = incoming_.find(transfer);
  return found == incoming_.end() ? nullptr : found->second;
}

ReceiverCore::IncomingPtr ReceiverCore::find_from(const link::SessionPtr& session,
                                                  TransferId transfer) const {
  IncomingPtr incoming = find(transfer);
  return incoming && incoming->session == session ? incoming : nullptr;
}

IncomingProgress ReceiverCore::progress_of(TransferId transfer) const {
  const std::lock_guard lock(mutex_);
  const IncomingPtr incoming = find(transfer);
  return incoming ? incoming->progress : IncomingProgress{};
}

void ReceiverCore::finish(TransferId transfer, const Status& outcome) {
  Actions after;
  const std::lock_guard lock(mutex_);
  const IncomingPtr incoming = find(transfer);
  if (!incoming) return;
  // The caller will not look at what it took any more.
  std::erase_if(taken_, [&](const auto& entry) { return entry.second.incoming == incoming; });
  incoming->taken = 0;
  if (incoming->state == Incoming::State::kDraining) return settle(after, incoming);
  if (!outcome.ok()) return fail(after, incoming, outcome, false);
  if (!incoming->progress.complete) {
    return fail(after, incoming, Status(ErrorCode::kInternal, "finished before it was complete"),
                false);
  }
  const TimePoint now = clock_.now();
  ++totals_.transfers_done;
  totals_.seconds += double(incoming->progress.last_us - incoming->progress.first_us) / 1e6;
  totals_.exposed_seconds += to_seconds(now - incoming->sealed_at);
  incoming->state = Incoming::State::kDraining;
  incoming->fate = Incoming::Fate::kReuse;  // Every byte that it may write has landed
  send(after, incoming->session, link::FrameKind::kDone,
       EndMessage{transfer, incoming->grant.key}.encode());
  settle(after, incoming);
}

// Ends a transfer that has not ended, whatever its state.
void ReceiverCore::fail(Actions& after, const IncomingPtr& incoming, Status reason,
                        bool tell_user) {
  if (incoming->state == Incoming::State::kDraining) return;
  log_failure(incoming->transfer, "receiver", reason);
  if (tell_user && incoming->expected && incoming->events.on_failed) {
    after.add([event = incoming->events.on_failed, reason] { event(reason); });
  }
  const bool streaming = incoming->state == Incoming::State::kStreaming;
  incoming->state = Incoming::State::kDraining;
  if (!streaming) {
    queue_.remove(incoming->transfer);
    if (incoming->expected) remember_over(incoming->transfer);
    if (incoming->open) deny(after, incoming->session, incoming->transfer, std::move(reason));
    incoming_.erase(incoming->transfer);
    return;
  }
  ++totals_.failures;
  forget_ready(*incoming);
  incoming->deadline = clock_.now() + config_.progress_deadline;
  send(after, incoming->session, link::FrameKind::kAbort,
       RefusalMessage{incoming->transfer, std::move(reason)}.encode());
}

void ReceiverCore::remember_over(TransferId transfer) {
  over_.push_back(transfer);
  if (over_.size() > kOverMax) over_.pop_front();
}

void ReceiverCore::forget_ready(const Incoming& incoming) {
  std::erase_if(ready_, [&](const Ready& ready) { return ready.incoming.get() == &incoming; });
}

// Gives a segment back once its sender is quiet (or given up) and nobody here looks at it.
void ReceiverCore::settle(Actions& after, const IncomingPtr& incoming) {
  if (incoming->fate == Incoming::Fate::kUndecided || incoming->taken > 0) return;
  const auto found = incoming_.find(incoming->transfer);
  if (found == incoming_.end() || found->second != incoming) return;
  incoming_.erase(found);
  if (incoming->fate == Incoming::Fate::kReuse) {
    pool_.release(incoming->grant);
  } else {
    pool_.retire(incoming->grant, incoming->open->process);
    totals_.segments_retired = pool_.retired_total();
  }
  grant_waiting(after);
}

void ReceiverCore::on_frame(const link::SessionPtr& session, link::FrameKind kind,
                            std::string_view body) {
  Actions after;
  const std::lock_guard lock(mutex_);
  if (kind == link::FrameKind::kOpen) {
    auto open = OpenMessage::decode(body);
    if (open) return on_open(after, session, *std::move(open));
    after.add([session, status = open.status()] { session->close(status); });
  } else if (kind == link::FrameKind::kSeal) {
    auto seal = SealMessage::decode(body);
    if (!seal) {
      after.add([session, status = seal.status()] { session->close(status); });
      return;
    }
    const IncomingPtr incoming = find_from(session, seal->transfer);
    if (incoming && incoming->state == Incoming::State::kStreaming &&
        incoming->grant.key == seal->key) {
      on_seal(after, incoming, *seal);
    }
  } else if (kind == link::FrameKind::kAbort || kind == link::FrameKind::kQuiesced) {
    on_end_frame(after, session, kind, body);
  } else {
    after.add([session] {
      session->close(Status(ErrorCode::kInvalidArgument, "a frame that no sender sends"));
    });
  }
}

void ReceiverCore::on_end_frame(Actions& after, const link::SessionPtr& session,
                                link::FrameKind kind, std::string_view body) {
  if (kind == link::FrameKind::kAbort) {
    const auto abort = RefusalMessage::decode(body);
    if (!abort) return after.add([session, status = abort.status()] { session->close(status); });
    if (const IncomingPtr incoming = find_from(session, abort->transfer)) {
      fail(after, incoming, abort->reason);
    }
    return;
  }
  const auto quiesced = EndMessage::decode(body);
  if (!quiesced)
    return after.add([session, status = quiesced.status()] { session->close(status); });
  const IncomingPtr incoming = find_from(session, quiesced->transfer);
  if (incoming && incoming->state == Incoming::State::kStreaming) {
    fail(after, incoming, Status(ErrorCode::kInvalidArgument, "quiesced without an abort"));
  }
  if (incoming && incoming->state == Incoming::State::kDraining &&
      incoming->fate == Incoming::Fate::kUndecided) {
    const bool ours = quiesced->key == incoming->grant.key || quiesced->key == 0;
    incoming->fate = ours && quiesced->clean ? Incoming::Fate::kReuse : Incoming::Fate::kRetire;
    settle(after, incoming);
  } else if (!incoming && quiesced->clean && quiesced->key != 0) {
    // A sender that lost its session says later that it had stopped.
    pool_.settle(quiesced->key);
    grant_waiting(after);
  }
}

void ReceiverCore::on_close(const link::SessionPtr& session, const Status& reason) {
  Actions after;
  const std::lock_guard lock(mutex_);
  std::vector<IncomingPtr> affected;
  for (const auto& [id, incoming] : incoming_) {
    if (incoming->session == session) affected.push_back(incoming);
  }
  for (const IncomingPtr& incoming : affected) {
    if (incoming->state == Incoming::State::kWaiting) {
      incoming_.erase(incoming->transfer);
      continue;
    }
    fail(after, incoming,
         Status(ErrorCode::kUnavailable, "the sender is gone: " + reason.message()));
    if (incoming->fate == Incoming::Fate::kUndecided) incoming->fate = Incoming::Fate::kRetire;
    if (incoming_.contains(incoming->transfer)) settle(after, incoming);
  }
  std::erase_if(credit_channels_, [&](const auto& entry) {
    if (entry.first.first != session.get()) return false;
    after.add([channel = entry.second] { channel->close(); });
    return true;
  });
}

void ReceiverCore::tick() {
  {
    Actions after;
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    const TimePoint now = clock_.now();
    for (const TransferId late : queue_.expire(now)) {
      const IncomingPtr incoming = find(late);
      const std::string detail =
          pool_.retired() > 0 ? " (some is kept aside after peers that failed silently)" : "";
      if (incoming) {
        fail(after, incoming,
             Status(ErrorCode::kResourceExhausted,
                    "no landing space within transfer.grant_deadline" + detail));
      }
    }
    std::vector<IncomingPtr> all;
    for (const auto& [id, incoming] : incoming_) all.push_back(incoming);
    for (const IncomingPtr& incoming : all) check_deadlines(after, incoming, now);
    if (pool_.retired() > 0) {
      pool_.settle_dead();
      grant_waiting(after);
    }
  }
  for (Transport* transport : transports_) transport->progress();
  arm_timer();
}

void ReceiverCore::check_deadlines(Actions& after, const IncomingPtr& incoming, TimePoint now) {
  if (incoming->state == Incoming::State::kDraining) {
    if (now < incoming->deadline || incoming->fate != Incoming::Fate::kUndecided) return;
    log_warn("event=transfer_not_quiesced transfer={:x}", incoming->transfer.value);
    incoming->fate = Incoming::Fate::kRetire;
    return settle(after, incoming);
  }
  if (incoming->state == Incoming::State::kStreaming &&
      now - incoming->moved > config_.progress_deadline) {
    // What the user holds, or could take, is no fault of the sender's.
    if (incoming->ready == 0 && incoming->taken == 0 && !incoming->progress.complete) {
      const Status reason =
          incoming->sealed
              ? Status(ErrorCode::kDataLoss, "sealed, but " + incoming->coverage->missing())
              : Status(ErrorCode::kDeadlineExceeded, "no row within transfer.progress_deadline");
      return fail(after, incoming, reason);
    }
  }
  if (now >= incoming->deadline && incoming->state != Incoming::State::kQueued) {
    const bool unexpected = !incoming->expected;
    fail(after, incoming,
         unexpected ? Status(ErrorCode::kNotFound, "nobody announced this transfer")
                    : Status(ErrorCode::kDeadlineExceeded, "the transfer's deadline has passed"));
  }
}

bool ReceiverCore::poll() {
  polled_.note();
  bool moved = false;
  for (Transport* transport : transports_) moved = transport->progress() || moved;
  return moved;
}

int ReceiverCore::streams_open() const {
  const std::lock_guard lock(mutex_);
  return int(std::count_if(incoming_.begin(), incoming_.end(), [](const auto& entry) {
    return entry.second->state != Incoming::State::kDraining;
  }));
}

int64_t ReceiverCore::landing_bytes_used() const {
  const std::lock_guard lock(mutex_);
  return pool_.bytes_used();
}

TransferTotals ReceiverCore::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

namespace {

class ReceiverImpl final : public Receiver {
 public:
  explicit ReceiverImpl(std::shared_ptr<ReceiverCore> core) : core_(std::move(core)) {}
  ~ReceiverImpl() override { core_->stop(); }

  Status expect(const Expectation& expectation, IncomingEvents events) override {
    return core_->expect(expectation, std::move(events));
  }
  std::vector<LandedUnit> take(size_t bytes_max) override { return core_->take(bytes_max); }
  void consumed(const LandedUnit& unit) override { core_->consumed(unit); }
  IncomingProgress progress_of(TransferId transfer) const override {
    return core_->progress_of(transfer);
  }
  void finish(TransferId transfer, const Status& outcome) override {
    core_->finish(transfer, outcome);
  }
  bool poll() override { return core_->poll(); }
  int streams_open() const override { return core_->streams_open(); }
  int64_t landing_bytes_used() const override { return core_->landing_bytes_used(); }
  TransferTotals totals() const override { return core_->totals(); }
  void on_frame(const link::SessionPtr& session, link::FrameKind kind,
                std::string_view body) override {
    core_->on_frame(session, kind, body);
  }
  void on_close(const link::SessionPtr& session, const Status& reason) override {
    core_->on_close(session, reason);
  }
  void stop() override { core_->stop(); }

 private:
  const std::shared_ptr<ReceiverCore> core_;
};

}  // namespace

Result<std::unique_ptr<Receiver>> make_receiver(boost::asio::io_context& io, const Config& config,
                                                const KvLayout& layout,
                                                std::vector<Transport*> transports) {
  auto pool =
      SegmentPool::create(transports, config.transfer.landing_bytes, config.transfer.segment_bytes);
  if (!pool) return pool.status();
  auto core =
      std::make_shared<ReceiverCore>(io, config, layout, std::move(transports), *std::move(pool));
  core->start();
  return std::unique_ptr<Receiver>(std::make_unique<ReceiverImpl>(std::move(core)));
}

}  // namespace tandem::transfer

#include "transfer/stream/sender.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <future>

#include "common/log.h"
#include "transfer/stream/log_failure.h"

namespace tandem::transfer {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kStopDeadline = std::chrono::seconds(1);
constexpr auto kGrantSlack = std::chrono::seconds(2);  // For the receiver's own refusal to arrive
constexpr size_t kUnreportedMax = 1024;

// The user's handle.
class StreamHandle final : public OutgoingStream {
 public:
  StreamHandle(std::shared_ptr<SenderCore> core, OutgoingPtr stream)
      : core_(std::move(core)), stream_(std::move(stream)) {}
  void push(const LayerRows& rows) override { core_->push(stream_, rows); }
  void seal(SealInfo info) override { core_->seal(stream_, std::move(info)); }
  void abort(Status reason) override { core_->abort(stream_, std::move(reason)); }
  uint64_t bytes_sent() const override { return stream_->bytes_sent; }
  uint64_t units_acknowledged() const override { return stream_->acknowledged; }

 private:
  const std::shared_ptr<SenderCore> core_;
  const OutgoingPtr stream_;
};

}  // namespace

SenderCore::SenderCore(boost::asio::io_context& io, const link::LinkContext& link,
                       const Config& config, const KvLayout& layout,
                       std::vector<Transport*> transports)
    : io_(io),
      link_(link),
      config_(config.transfer),
      connect_deadline_(config.link.connect_deadline),
      layout_(layout),
      layout_digest_(layout.digest()),
      transports_(std::move(transports)),
      timer_(io),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void SenderCore::start() {
  for (Transport* transport : transports_) {
    transport->set_message_handler([weak = weak_from_this()](std::string_view message) {
      const auto self = weak.lock();
      if (!self) return;
      if (const auto credit = Credit::decode(message)) {
        self->on_credit(*credit);
      } else {
        log_warn("event=transfer_garbage bytes={}", message.size());
      }
    });
  }
  thread_ = std::thread([this] { run(); });
  boost::asio::post(io_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->arm_timer();
  });
}

void SenderCore::arm_timer() {
  timer_.expires_after(kTick);
  timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    if (const auto self = weak.lock(); self && !error) self->tick();
  });
}

std::shared_ptr<OutgoingStream> SenderCore::open(const OpenRequest& request,
                                                 OutgoingEvents events) {
  const auto stream = std::make_shared<Outgoing>();
  stream->request = request;
  stream->events = std::move(events);
  stream->rows.resize(2 * layout_.layers.size());
  stream->bytes.resize(2 * layout_.layers.size());
  stream->created = stream->moved = clock_.now();
  auto handle = std::make_shared<StreamHandle>(shared_from_this(), stream);

  Status refused;
  Actions after;
  const std::lock_guard lock(mutex_);
  if (stopped_) refused = Status(ErrorCode::kUnavailable, "the worker is stopping");
  if (streams_.contains(request.transfer)) {
    refused = Status(ErrorCode::kFailedPrecondition, "this transfer is open already");
  } else if (streams_.size() >= size_t(config_.streams_max)) {
    refused = Status(ErrorCode::kResourceExhausted, "as many transfers as transfer.streams_max");
  } else if (request.tokens < 1 || transports_.empty()) {
    refused = Status(ErrorCode::kInvalidArgument, "nothing to send, or no transport");
  }
  if (!refused.ok()) {
    stream->state = Outgoing::State::kEnded;
    if (stream->events.on_failed) {
      after.add([event = stream->events.on_failed, refused] { event(refused); });
    }
    return handle;
  }
  auto& peer = peers_[request.decode_listen];
  if (!peer) {
    peer = std::make_shared<PeerLink>();
    peer->listen = request.decode_listen;
  }
  stream->peer = peer;
  streams_[request.transfer] = stream;
  if (peer->state == PeerLink::State::kOpen) {
    send_open(after, stream);
  } else {
    connect(after, peer);
  }
  return handle;
}

void SenderCore::abort(const OutgoingPtr& stream, Status reason) {
  Actions after;
  const std::lock_guard lock(mutex_);
  abort_stream(after, stream, std::move(reason), true);
}

void SenderCore::abort_stream(Actions& after, const OutgoingPtr& stream, Status reason,
                              bool tell_peer) {
  if (stream->state >= Outgoing::State::kAborting) return;
  if (reason.ok()) reason = Status(ErrorCode::kCancelled, "aborted");
  log_failure(stream->request.transfer, "sender", reason);
  const bool opened = stream->state != Outgoing::State::kConnecting;
  if (opened && tell_peer) {
    send(after, stream->peer->session, link::FrameKind::kAbort,
         RefusalMessage{stream->request.transfer, reason}.encode());
  }
  stream->reason = std::move(reason);
  stream->pending.clear();
  stream->abort_deadline = clock_.now() + config_.progress_deadline / 2;
  // While a thread attaches, it settles when it comes back.
  const bool attaching = stream->state == Outgoing::State::kAttaching;
  stream->state = Outgoing::State::kAborting;
  if (!attaching) settle(after, stream);
}

// An aborting stream ends once no thread puts and every put is known to have ended. Safe to call at
// any time.
void SenderCore::settle(Actions& after, const OutgoingPtr& stream) {
  if (stream->state != Outgoing::State::kAborting || stream->pumping) return;
  if (stream->path && !stream->unannounced.empty() && !stream->segment->put_is_copy()) {
    if (stream->path->broken) {
      stream->unclean = true;
      stream->unannounced.clear();
    } else if (!std::exchange(stream->flushing, true)) {
      ++stream->notifications;
      after.add([self = shared_from_this(), stream] {
        // A message without units: its report says that the puts before it have ended.
        const Status status = self->announce(stream, {});
        if (!status.ok()) self->on_announced(stream, status);
      });
    }
  }
  if (stream->notifications > 0) return;
  const EndMessage quiesced{stream->request.transfer, stream->key, !stream->unclean};
  PeerLink& peer = *stream->peer;
  if (peer.session && peer.state == PeerLink::State::kOpen) {
    send(after, peer.session, link::FrameKind::kQuiesced, quiesced.encode());
  } else if (quiesced.clean && stream->key != 0 && peer.unreported.size() < kUnreportedMax) {
    peer.unreported.emplace_back(stream->request.decode_epoch, quiesced);
  }
  end(after, stream, stream->reason);
}

void SenderCore::end(Actions& after, const OutgoingPtr& stream, Status outcome) {
  if (stream->state == Outgoing::State::kEnded) return;
  stream->state = Outgoing::State::kEnded;
  // `stream` may be the map's own pointer: the entry lives until all who use it have returned.
  const auto entry = streams_.find(stream->request.transfer);
  if (entry != streams_.end()) {
    using Node = decltype(streams_)::node_type;
    after.add([node = std::make_shared<Node>(streams_.extract(entry))] {});
  }
  stream->pending.clear();
  // Rows may be forgotten after the event: a closed channel reads none, whoever broke it.
  if (stream->path && stream->path->broken) {
    after.add([channel = stream->path->channel] { channel->close(); });
  }
  const TimePoint now = clock_.now();
  if (outcome.ok()) {
    ++totals_.transfers_done;
    if (stream->first_put != TimePoint{}) totals_.seconds += to_seconds(now - stream->first_put);
    totals_.exposed_seconds += to_seconds(now - stream->sealed_at);
    if (stream->events.on_done) add_terminal_event(after, stream->events.on_done);
  } else {
    ++totals_.failures;
    if (stream->events.on_failed) {
      add_terminal_event(after, [event = stream->events.on_failed, outcome] { event(outcome); });
    }
  }
  release_path(stream);
  ended_.notify_all();
}

void SenderCore::add_terminal_event(Actions& after, std::function<void()> event) {
  ++events_running_;
  after.add([self = shared_from_this(), run = std::move(event)] {
    run();
    const std::lock_guard lock(self->mutex_);
    --self->events_running_;
    self->ended_.notify_all();
  });
}

// The user may keep an ended stream for longer than the transport lives. Safe to call at any time.
void SenderCore::release_path(const OutgoingPtr& stream) {
  if (stream->state != Outgoing::State::kEnded || stream->pumping || stream->notifications > 0)
    return;
  stream->segment.reset();
  stream->path.reset();
}

// Whoever uses the path ends; its pending notifications report, so that aborting streams settle.
void SenderCore::break_path(Actions& after, const std::shared_ptr<Path>& path,
                            const Status& reason) {
  if (!path || std::exchange(path->broken, true)) return;
  after.add([self = shared_from_this(), channel = path->channel] {
    channel->close();
    self->wake();
  });
  for (const OutgoingPtr& stream : all_streams()) {
    if (stream->path == path) abort_stream(after, stream, reason, true);
  }
}

std::vector<OutgoingPtr> SenderCore::all_streams() const {
  std::vector<OutgoingPtr> all;
  for (const auto& [id, stream] : streams_) all.push_back(stream);
  return all;
}

void SenderCore::tick() {
  {
    Actions after;
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    const TimePoint now = clock_.now();
    for (const OutgoingPtr& stream : all_streams()) check_deadlines(after, stream, now);
  }
  arm_timer();
}

void SenderCore::check_deadlines(Actions& after, const OutgoingPtr& stream, TimePoint now) {
  using State = Outgoing::State;
  if (stream->state == State::kAborting) {
    // The peer does not take what is under way: closing the channel ends it.
    if (now > stream->abort_deadline) break_path(after, stream->path, stream->reason);
    return;
  }
  const auto late = [&](Duration limit) { return now - stream->moved > limit; };
  const auto give_up = [&](std::string what) {
    abort_stream(after, stream, Status(ErrorCode::kDeadlineExceeded, std::move(what)), true);
  };
  const Duration whole = stream->request.deadline;
  if (whole.count() > 0 && now - stream->created > whole)
    return give_up("the transfer's deadline has passed");
  if (stream->state == State::kConnecting && late(connect_deadline_ + kGrantSlack)) {
    return give_up("no session with the decode worker");
  }
  if (stream->state == State::kOpening && late(config_.grant_deadline + kGrantSlack)) {
    return give_up("no answer to OPEN");
  }
  if (stream->state != State::kStreaming) return;
  const bool waiting = !stream->pending.empty() || stream->notifications > 0 || stream->sealed;
  if (waiting && late(config_.progress_deadline)) {
    return give_up("nothing moved within transfer.progress_deadline");
  }
  // While the engine computes, the receiver hears from us, over the path that the rows take.
  const Duration quiet = config_.progress_deadline / 4;
  if (!waiting && late(quiet) && now - stream->pulsed > quiet) {
    stream->pulsed = now;
    ++stream->notifications;
    after.add([self = shared_from_this(), stream] {
      const Status status = self->announce(stream, {});
      if (!status.ok()) self->on_announced(stream, status);
    });
  }
}

int SenderCore::streams_open() const {
  const std::lock_guard lock(mutex_);
  return int(streams_.size());
}

TransferTotals SenderCore::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

void SenderCore::stop() {
  std::vector<std::shared_ptr<PeerLink>> peers;
  {
    Actions after;
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    for (const OutgoingPtr& stream : all_streams()) {
      abort_stream(after, stream, Status(ErrorCode::kCancelled, "the worker is stopping"), true);
    }
    for (const auto& [listen, peer] : peers_) peers.push_back(peer);
  }
  const auto wait_for_quiet = [this] {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, kStopDeadline,
                           [this] { return streams_.empty() && events_running_ == 0; });
  };
  if (!wait_for_quiet()) {
    {
      Actions after;
      const std::lock_guard lock(mutex_);
      for (const auto& peer : peers) {
        for (auto& [name, path] : peer->paths) {
          break_path(after, path, Status(ErrorCode::kCancelled, "the worker is stopping"));
        }
      }
    }
    wait_for_quiet();
  }
  std::vector<link::SessionPtr> sessions;
  {
    Actions after;
    const std::lock_guard lock(mutex_);
    stopping_thread_ = true;
    for (const auto& peer : peers) {
      if (peer->session) sessions.push_back(std::exchange(peer->session, nullptr));
      ++peer->generation;
      for (auto& [name, path] : std::exchange(peer->paths, {})) {
        after.add([closing = path] { closing->channel->close(); });
      }
    }
    for (const OutgoingPtr& stream : all_streams()) {
      end(after, stream, Status(ErrorCode::kCancelled, "the worker is stopping"));
    }
  }
  for (const auto& session : sessions)
    session->close(Status(ErrorCode::kUnavailable, "the worker is stopping"));
  wake();
  if (thread_.joinable()) thread_.join();
  for (Transport* transport : transports_) transport->set_message_handler(nullptr);
  const auto quiet = [self = shared_from_this()] { self->timer_.cancel(); };
  if (io_.stopped() || io_.get_executor().running_in_this_thread()) return quiet();
  // Whatever runs on the io_context thread has to end before transports may go.
  const auto ended = std::make_shared<std::promise<void>>();
  boost::asio::post(io_, [quiet, ended] {
    quiet();
    ended->set_value();
  });
  ended->get_future().wait_for(kStopDeadline);
}

namespace {

class SenderImpl final : public Sender {
 public:
  explicit SenderImpl(std::shared_ptr<SenderCore> core) : core_(std::move(core)) {}
  ~SenderImpl() override { core_->stop(); }

  std::shared_ptr<OutgoingStream> open(const OpenRequest& request, OutgoingEvents events) override {
    return core_->open(request, std::move(events));
  }
  void progress() override { core_->progress(); }
  int streams_open() const override { return core_->streams_open(); }
  TransferTotals totals() const override { return core_->totals(); }
  void stop() override { core_->stop(); }

 private:
  const std::shared_ptr<SenderCore> core_;
};

}  // namespace

std::unique_ptr<Sender> make_sender(boost::asio::io_context& io, const link::LinkContext& link,
                                    const Config& config, const KvLayout& layout,
                                    std::vector<Transport*> transports) {
  auto core = std::make_shared<SenderCore>(io, link, config, layout, std::move(transports));
  core->start();
  return std::make_unique<SenderImpl>(std::move(core));
}

}  // namespace tandem::transfer

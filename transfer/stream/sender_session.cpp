// The sender's part on the link: dialling decode workers, OPEN to GRANTED, and what the receiver
// says.
#include <sodium/utils.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "common/log.h"
#include "transfer/stream/sender.h"

namespace tandem::transfer {
namespace {

constexpr uint64_t kUnitBytesMax = 1 << 20;
constexpr uint64_t kUnitsPerSegmentMin = 4;  // So that putting, checking and importing overlap
// In shared memory a long way round the ring only wears out the cache: 10% faster than 8 MB.
constexpr uint64_t kCopyRingBytesMax = 4 << 20;

// The host of "host:port" or "[v6]:port".
std::string host_of(const std::string& listen) {
  const auto parsed = parse_host_port(listen);
  return parsed ? parsed->host : "";
}

}  // namespace

void SenderCore::send(Actions& after, const link::SessionPtr& session, link::FrameKind kind,
                      std::string body) {
  if (!session) return;
  frames_.add([session, kind, text = std::move(body)] {
    static_cast<void>(session->send(kind, text));  // Its loss shows when the session closes
  });
  after.add([self = shared_from_this()] { self->frames_.deliver(); });
}

OutgoingPtr SenderCore::find(const std::shared_ptr<PeerLink>& peer, TransferId transfer) const {
  const auto found = streams_.find(transfer);
  return found != streams_.end() && found->second->peer == peer ? found->second : nullptr;
}

void SenderCore::connect(Actions& after, const std::shared_ptr<PeerLink>& peer) {
  if (peer->state != PeerLink::State::kClosed) return;
  peer->state = PeerLink::State::kDialling;
  const uint64_t generation = ++peer->generation;
  after.add([self = shared_from_this(), peer, generation] {
    boost::asio::post(self->io_, [weak = self->weak_from_this(), peer, generation] {
      if (const auto core = weak.lock()) core->dial(peer, generation);
    });
  });
}

void SenderCore::dial(const std::shared_ptr<PeerLink>& peer, uint64_t generation) {
  link::SessionHandlers handlers;
  const auto weak = weak_from_this();
  handlers.check = [](const link::Hello& hello) {
    return hello.kind == "worker" ? Status()
                                  : Status(ErrorCode::kFailedPrecondition, "the peer is no worker");
  };
  handlers.on_open = [weak, peer, generation](const link::SessionPtr& session) {
    if (const auto self = weak.lock()) self->on_session_open(peer, generation, session);
  };
  handlers.on_frame = [weak, peer, generation](const link::SessionPtr&, link::FrameKind kind,
                                               std::string_view body) {
    if (const auto self = weak.lock()) self->on_frame(peer, generation, kind, body);
  };
  handlers.on_close = [weak, peer, generation](const link::SessionPtr&, const Status& reason) {
    if (const auto self = weak.lock()) self->on_session_close(peer, generation, reason);
  };
  const link::SessionPtr session = link::dial(io_, link_, peer->listen, std::move(handlers));
  const std::lock_guard lock(mutex_);
  if (peer->generation == generation && !peer->session) peer->session = session;
}

void SenderCore::on_session_open(const std::shared_ptr<PeerLink>& peer, uint64_t generation,
                                 const link::SessionPtr& session) {
  Actions after;
  const std::lock_guard lock(mutex_);
  if (peer->generation != generation) return;
  if (stopped_) {
    after.add(
        [session] { session->close(Status(ErrorCode::kUnavailable, "the worker is stopping")); });
    return;
  }
  peer->state = PeerLink::State::kOpen;
  peer->session = session;
  if (peer->epoch != session->peer().epoch) {
    // Another process: nothing of the old one's memory is valid.
    for (auto& [name, path] : std::exchange(peer->paths, {})) {
      break_path(after, path, Status(ErrorCode::kUnavailable, "the decode worker was restarted"));
    }
  }
  peer->epoch = session->peer().epoch;
  for (const auto& [epoch, message] : std::exchange(peer->unreported, {})) {
    if (epoch == peer->epoch) send(after, session, link::FrameKind::kQuiesced, message.encode());
  }
  for (const OutgoingPtr& stream : all_streams()) {
    if (stream->peer == peer && stream->state == Outgoing::State::kConnecting)
      send_open(after, stream);
  }
}

void SenderCore::send_open(Actions& after, const OutgoingPtr& stream) {
  const PeerLink& peer = *stream->peer;
  if (peer.epoch != stream->request.decode_epoch) {
    abort_stream(after, stream,
                 Status(ErrorCode::kUnavailable, "that decode worker is another process now"),
                 false);
    return;
  }
  OpenMessage open;
  open.transfer = stream->request.transfer;
  open.token = stream->request.token;
  open.layout_digest = layout_digest_;
  open.tokens = stream->request.tokens;
  open.integrity = config_.integrity;
  open.deadline_ms = std::chrono::duration_cast<Milliseconds>(stream->request.deadline).count();
  open.process = process_;
  for (Transport* transport : transports_) {
    open.offers.push_back({std::string(transport->protocol()), transport->address()});
  }
  stream->state = Outgoing::State::kOpening;
  stream->moved = clock_.now();
  send(after, peer.session, link::FrameKind::kOpen, open.encode());
}

void SenderCore::on_session_close(const std::shared_ptr<PeerLink>& peer, uint64_t generation,
                                  const Status& reason) {
  Actions after;
  const std::lock_guard lock(mutex_);
  if (peer->generation != generation) return;
  peer->state = PeerLink::State::kClosed;
  peer->session = nullptr;
  const Status lost(ErrorCode::kUnavailable, "the decode worker is gone: " + reason.message());
  for (const OutgoingPtr& stream : all_streams()) {
    if (stream->peer == peer) abort_stream(after, stream, lost, false);
  }
  for (auto& [name, path] : std::exchange(peer->paths, {})) break_path(after, path, lost);
  const bool needed = std::any_of(streams_.begin(), streams_.end(),
                                  [&](const auto& entry) { return entry.second->peer == peer; });
  if (!needed && peer->unreported.empty()) peers_.erase(peer->listen);
}

void SenderCore::on_frame(const std::shared_ptr<PeerLink>& peer, uint64_t generation,
                          link::FrameKind kind, std::string_view body) {
  Status malformed;
  if (kind == link::FrameKind::kGranted) {
    const auto granted = GrantedMessage::decode(body);
    OutgoingPtr stream;
    if (granted) {
      const std::lock_guard lock(mutex_);
      if (peer->generation != generation) return;
      stream = find(peer, granted->transfer);
      if (stream && stream->state == Outgoing::State::kOpening) {
        stream->state = Outgoing::State::kAttaching;
        stream->key = granted->key;
      } else {
        stream = nullptr;  // Given up meanwhile; the receiver has been told
      }
    }
    if (stream) on_granted(stream, *granted);
    malformed = granted.status();
  } else if (kind == link::FrameKind::kDenied || kind == link::FrameKind::kAbort) {
    const auto refusal = RefusalMessage::decode(body);
    Actions after;
    const std::lock_guard lock(mutex_);
    const OutgoingPtr stream = refusal ? find(peer, refusal->transfer) : nullptr;
    if (stream && kind == link::FrameKind::kDenied && stream->state == Outgoing::State::kOpening) {
      end(after, stream, refusal->reason);
    } else if (stream && kind == link::FrameKind::kAbort) {
      abort_stream(after, stream, refusal->reason, true);
    }
    malformed = refusal.status();
  } else if (kind == link::FrameKind::kCredit) {
    const auto credit = Credit::decode(body);
    if (credit) on_credit(*credit);
    malformed = credit.status();
  } else if (kind == link::FrameKind::kDone) {
    const auto done = EndMessage::decode(body);
    Actions after;
    const std::lock_guard lock(mutex_);
    const OutgoingPtr stream = done ? find(peer, done->transfer) : nullptr;
    if (stream && stream->key == done->key) on_done(after, stream);
    malformed = done.status();
  } else {
    malformed = Status(ErrorCode::kInvalidArgument, "a frame that no receiver sends");
  }
  if (malformed.ok()) return;
  link::SessionPtr session;
  {
    const std::lock_guard lock(mutex_);
    session = peer->session;
  }
  if (session) session->close(malformed);
}

// On the io_context thread; the state is kAttaching, so nobody else touches the path.
void SenderCore::on_granted(const OutgoingPtr& stream, const GrantedMessage& granted) {
  std::shared_ptr<Path> path;
  auto segment = attach(stream, granted, path);
  Actions after;
  {
    const std::lock_guard lock(mutex_);
    if (stream->state == Outgoing::State::kAborting) return settle(after, stream);
    if (stream->state != Outgoing::State::kAttaching) return;
    stream->state =
        Outgoing::State::kOpening;  // Nobody attaches any more: an abort settles at once
    uint64_t row_bytes_max = 1;
    for (const KvLayout::Layer& layer : layout_.layers) {
      row_bytes_max =
          std::max<uint64_t>({row_bytes_max, layer.key_row_bytes, layer.value_row_bytes});
    }
    Status status = segment.status();
    if (status.ok() && granted.layout_digest != layout_digest_) {
      status = Status(ErrorCode::kFailedPrecondition, "the receiver's KV layout is another one");
    }
    if (status.ok() && (granted.bytes > (*segment)->size() || granted.bytes < row_bytes_max)) {
      status = Status(ErrorCode::kInvalidArgument, "the granted segment holds no row");
    }
    if (!status.ok()) return abort_stream(after, stream, status, true);
    stream->path = path;
    stream->segment = *segment;
    const uint64_t ring_bytes = (*segment)->put_is_copy() && row_bytes_max <= kUnitBytesMax
                                    ? std::min(granted.bytes, kCopyRingBytesMax)
                                    : granted.bytes;
    stream->ring = RingAllocator(ring_bytes);
    stream->unit_bytes_max =
        std::max(row_bytes_max, std::min(kUnitBytesMax, ring_bytes / kUnitsPerSegmentMin));
    stream->state = Outgoing::State::kStreaming;
    stream->moved = stream->pulsed = clock_.now();
    if (stream->events.on_granted) after.add(stream->events.on_granted);
    if (stream->sealed) send_seal(after, stream);
    mark_runnable(stream);
  }
  wake();
}

Result<std::shared_ptr<RemoteSegment>> SenderCore::attach(const OutgoingPtr& stream,
                                                          const GrantedMessage& granted,
                                                          std::shared_ptr<Path>& path) {
  const auto known = std::find_if(
      transports_.begin(), transports_.end(),
      [&](const Transport* candidate) { return candidate->protocol() == granted.transport; });
  if (known == transports_.end()) {
    return Status(ErrorCode::kInvalidArgument, "granted over a transport that was not offered");
  }
  const std::string name = granted.transport + ":" + granted.address;
  std::shared_ptr<RemoteSegment> segment;
  {
    const std::lock_guard lock(mutex_);
    const auto found = stream->peer->paths.find(name);
    if (found != stream->peer->paths.end() && !found->second->broken) path = found->second;
    if (path) {
      const auto warm = path->segments.find(granted.descriptor);
      if (warm != path->segments.end()) return warm->second;
    }
  }
  if (!path) {
    auto channel = (*known)->connect(granted.address, host_of(stream->request.decode_listen));
    if (!channel) return channel.status();
    path = std::make_shared<Path>();
    path->transport = *known;
    path->channel = *std::move(channel);
    const std::lock_guard lock(mutex_);
    stream->peer->paths[name] = path;
  }
  auto attached = path->channel->attach(granted.descriptor);
  if (!attached) return attached;
  // Descriptors of one-sided memory come again, warm; others are of one grant only.
  if ((*known)->capabilities().one_sided) {
    const std::lock_guard lock(mutex_);
    path->segments[granted.descriptor] = *attached;
  }
  return attached;
}

void SenderCore::send_seal(Actions& after, const OutgoingPtr& stream) {
  if (std::exchange(stream->seal_sent, true)) return;
  const SealMessage seal{
      stream->request.transfer, stream->key, stream->seal.tokens, stream->rows, stream->bytes,
      stream->seal.first};
  send(after, stream->peer->session, link::FrameKind::kSeal, seal.encode());
}

void SenderCore::on_done(Actions& after, const OutgoingPtr& stream) {
  if (stream->state != Outgoing::State::kStreaming) return;
  if (!stream->seal_sent || !stream->pending.empty()) {
    abort_stream(after, stream,
                 Status(ErrorCode::kInvalidArgument, "DONE before everything was sent"), true);
    return;
  }
  // The pumping thread may not have come back yet from announcing the last unit.
  stream->done_received = true;
  if (!stream->pumping) end(after, stream, Status());
}

void SenderCore::on_credit(const Credit& credit) {
  {
    Actions after;
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(credit.transfer);
    if (found == streams_.end()) return;
    const OutgoingPtr& stream = found->second;
    if (stream->state != Outgoing::State::kStreaming || stream->key != credit.key) return;
    if (!stream->ring.release_below(credit.consumed)) {
      return abort_stream(
          after, stream,
          Status(ErrorCode::kInvalidArgument, "credit for units that were never sent"), true);
    }
    stream->acknowledged = std::max<uint64_t>(stream->acknowledged, credit.consumed);
    stream->moved = clock_.now();
    if (stream->pending.empty()) return;
    mark_runnable(stream);
  }
  wake();
}

}  // namespace tandem::transfer

// The receiver's part from the router's announcement and the sender's OPEN to the grant of landing
// space.
#include <sodium/utils.h>

#include <algorithm>

#include "common/log.h"
#include "transfer/stream/receiver.h"

namespace tandem::transfer {
namespace {

bool same_token(const std::string& given, const std::string& expected) {
  return given.size() == expected.size() &&
         ::sodium_memcmp(given.data(), expected.data(), expected.size()) == 0;
}

TimePoint deadline_after(TimePoint now, Duration limit) {
  return limit.count() > 0 ? now + limit : TimePoint::max();
}

}  // namespace

Status ReceiverCore::expect(const Expectation& expectation, IncomingEvents events) {
  Actions after;
  const std::lock_guard lock(mutex_);
  if (stopped_) return Status(ErrorCode::kUnavailable, "the worker is stopping");
  if (expectation.tokens < 1) return Status(ErrorCode::kInvalidArgument, "a transfer of no tokens");
  IncomingPtr incoming = find(expectation.transfer);
  if (incoming && (incoming->expected || incoming->state != Incoming::State::kWaiting)) {
    return Status(ErrorCode::kFailedPrecondition, "this transfer is expected already");
  }
  if (!incoming) {
    if (incoming_.size() >= size_t(config_.streams_max)) {
      return Status(ErrorCode::kResourceExhausted, "as many transfers as transfer.streams_max");
    }
    incoming = std::make_shared<Incoming>();
    incoming->transfer = expectation.transfer;
    incoming->created = clock_.now();
    incoming_[expectation.transfer] = incoming;
  }
  incoming->expected = expectation;
  incoming->events = std::move(events);
  incoming->deadline = deadline_after(clock_.now(), expectation.deadline);
  if (incoming->open) match(after, incoming);
  return {};
}

void ReceiverCore::on_open(Actions& after, const link::SessionPtr& session, OpenMessage open) {
  if (stopped_)
    return deny(after, session, open.transfer, Status(ErrorCode::kUnavailable, "stopping"));
  IncomingPtr incoming = find(open.transfer);
  if (incoming && (incoming->open || incoming->state != Incoming::State::kWaiting)) {
    return deny(after, session, open.transfer,
                Status(ErrorCode::kFailedPrecondition, "this transfer is open already"));
  }
  if (!incoming && std::find(over_.begin(), over_.end(), open.transfer) != over_.end()) {
    return deny(after, session, open.transfer,
                Status(ErrorCode::kCancelled, "this transfer is over"));
  }
  if (!incoming) {
    if (incoming_.size() >= size_t(config_.streams_max)) {
      return deny(
          after, session, open.transfer,
          Status(ErrorCode::kResourceExhausted, "as many transfers as transfer.streams_max"));
    }
    incoming = std::make_shared<Incoming>();
    incoming->transfer = open.transfer;
    incoming->created = clock_.now();
    incoming->deadline = clock_.now() + config_.grant_deadline;
    incoming_[open.transfer] = incoming;
  }
  incoming->session = session;
  incoming->open = std::move(open);
  if (incoming->expected) match(after, incoming);
}

// Both the router and the sender have spoken: do they speak of the same thing?
void ReceiverCore::match(Actions& after, const IncomingPtr& incoming) {
  if (!same_token(incoming->open->token, incoming->expected->token)) {
    // Somebody else's OPEN; the right one may still come.
    deny(after, incoming->session, incoming->transfer,
         Status(ErrorCode::kUnauthenticated, "wrong transfer token"));
    incoming->session = nullptr;
    incoming->open.reset();
    return;
  }
  if (const Status status = check_open(*incoming); !status.ok())
    return fail(after, incoming, status);
  if (!queue_.push(incoming->transfer, clock_.now() + config_.grant_deadline)) {
    return fail(after, incoming, Status(ErrorCode::kResourceExhausted, "the grant queue is full"));
  }
  incoming->state = Incoming::State::kQueued;
  grant_waiting(after);
}

Status ReceiverCore::check_open(const Incoming& incoming) const {
  const OpenMessage& open = *incoming.open;
  if (open.layout_digest != layout_digest_) {
    return Status(ErrorCode::kFailedPrecondition, "the sender's KV layout is another one");
  }
  if (open.tokens != incoming.expected->tokens) {
    return Status(ErrorCode::kInvalidArgument, "the sender has another number of tokens");
  }
  if (config_.integrity && !open.integrity) {
    return Status(ErrorCode::kFailedPrecondition, "the sender sends no checksums");
  }
  std::string ignored;
  if (choose_transport(open, ignored) == nullptr) {
    return Status(ErrorCode::kFailedPrecondition, "no transport in common");
  }
  return {};
}

// Ours in order of preference; one that is poor between hosts only if there is no other.
Transport* ReceiverCore::choose_transport(const OpenMessage& open, std::string& address) const {
  Transport* second_choice = nullptr;
  std::string second_address;
  for (Transport* transport : transports_) {
    if (!pool_.offers(*transport)) continue;
    for (const Offer& offer : open.offers) {
      if (offer.transport != transport->protocol()) continue;
      if (same_host(open.process) || transport->capabilities().between_hosts) {
        address = offer.address;
        return transport;
      }
      if (second_choice == nullptr) {
        second_choice = transport;
        second_address = offer.address;
      }
    }
  }
  address = second_address;
  return second_choice;
}

void ReceiverCore::deny(Actions& after, const link::SessionPtr& session, TransferId transfer,
                        Status reason) {
  ++totals_.failures;
  if (reason.code() != ErrorCode::kCancelled) {
    log_warn("event=transfer_denied transfer={:x} reason={}", transfer.value,
             tandem::quoted(reason.to_string()));
  }
  send(after, session, link::FrameKind::kDenied,
       RefusalMessage{transfer, std::move(reason)}.encode());
}

void ReceiverCore::send(Actions& after, const link::SessionPtr& session, link::FrameKind kind,
                        std::string body) {
  frames_.add([session, kind, text = std::move(body)] {
    static_cast<void>(session->send(kind, text));  // Its loss shows in on_close
  });
  after.add([self = shared_from_this()] { self->frames_.deliver(); });
}

void ReceiverCore::grant_waiting(Actions& after) {
  while (pool_.has_free()) {
    const auto next = queue_.front();
    if (!next) return;
    queue_.remove(*next);
    if (const IncomingPtr incoming = find(*next)) grant(after, incoming);
  }
}

void ReceiverCore::grant(Actions& after, const IncomingPtr& incoming) {
  std::string sender_address;
  Transport* transport = choose_transport(*incoming->open, sender_address);
  auto acquired = pool_.acquire(*transport);
  if (!acquired) return fail(after, incoming, acquired.status());
  incoming->grant = *std::move(acquired);
  incoming->state = Incoming::State::kStreaming;
  incoming->coverage.emplace(layout_, incoming->expected->tokens);
  incoming->moved = clock_.now();
  GrantedMessage granted{incoming->transfer,
                         incoming->grant.key,
                         layout_digest_,
                         std::string(transport->protocol()),
                         transport->address(),
                         incoming->grant.descriptor,
                         incoming->grant.memory.size()};
  frames_.add([self = shared_from_this(), incoming, session = incoming->session, transport,
               sender_address, body = granted.encode()] {
    self->open_credit_channel(incoming, *transport, sender_address);
    static_cast<void>(session->send(link::FrameKind::kGranted, body));
  });
  after.add([self = shared_from_this()] { self->frames_.deliver(); });
  if (incoming->events.on_granted) after.add(incoming->events.on_granted);
}

// Where the transport has messages of microseconds, credits go back over it. Without the mutex.
void ReceiverCore::open_credit_channel(const IncomingPtr& incoming, Transport& transport,
                                       const std::string& address) {
  if (!transport.capabilities().one_sided || address.empty()) return;
  const auto where =
      std::pair<const link::Session*, const Transport*>(incoming->session.get(), &transport);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = credit_channels_.find(where); found != credit_channels_.end()) {
      incoming->credit_channel = found->second;
      return;
    }
  }
  auto connected = transport.connect(address, "");
  if (!connected) {
    log_warn("event=credit_channel_refused transport={} reason={}", transport.name(),
             tandem::quoted(connected.status().to_string()));
    return;
  }
  const std::shared_ptr<Channel> channel = *std::move(connected);
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  incoming->credit_channel = credit_channels_.emplace(where, channel).first->second;
}

}  // namespace tandem::transfer

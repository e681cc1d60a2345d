// The receiver's part while rows land: checking LANDED, handing rows out, giving room back, the
// seal.
#include <fmt/format.h>

#include <algorithm>

#include "common/crc32c.h"
#include "common/log.h"
#include "transfer/stream/receiver.h"

namespace tandem::transfer {

void ReceiverCore::on_message(std::string_view message) {
  auto landed = Landed::decode(message);
  if (!landed) {
    log_warn("event=transfer_garbage bytes={} reason={}", message.size(),
             tandem::quoted(landed.status().message()));
    return;
  }
  Actions after;
  const std::lock_guard lock(mutex_);
  const IncomingPtr incoming = find(landed->transfer);
  if (!incoming || incoming->state != Incoming::State::kStreaming ||
      incoming->grant.key != landed->key) {
    return;  // Of a transfer that has ended, or of nobody
  }
  incoming->moved = clock_.now();
  if (landed->units.empty()) return;
  if (const Status status = accept_units(*incoming, landed->units); !status.ok()) {
    return fail(after, incoming, status);
  }
  note_landed(*incoming, landed->units);
  update_complete(*incoming);
  for (const Unit& unit : landed->units) ready_.push_back({incoming, unit});
  incoming->ready += landed->units.size();
  if (incoming->events.on_landed) after.add(incoming->events.on_landed);
}

// Checks every field against the grant, the layout and what came before. Nothing is trusted.
Status ReceiverCore::accept_units(Incoming& incoming, const std::vector<Unit>& units) {
  const auto refuse = [](const Unit& unit, std::string_view what) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("unit {} at {}+{}: {}", unit.sequence,
                                                           unit.offset, unit.bytes, what));
  };
  const uint64_t size = incoming.grant.memory.size();
  for (const Unit& unit : units) {
    if (unit.bytes == 0 || unit.offset > size || unit.bytes > size - unit.offset) {
      return refuse(unit, "beyond the segment");
    }
    // Each unit holds at least a byte of the segment, so that is how far numbers can be apart.
    if (unit.sequence < incoming.credited || unit.sequence - incoming.credited > size ||
        incoming.units.contains(unit.sequence)) {
      return refuse(unit, "a number that was used");
    }
    const uint64_t end = unit.offset + unit.bytes;
    const auto next = incoming.held.lower_bound(unit.offset);
    const bool overlaps = (next != incoming.held.end() && next->first < end) ||
                          (next != incoming.held.begin() && std::prev(next)->second > unit.offset);
    if (overlaps) return refuse(unit, "room that is still in use");
    TANDEM_RETURN_IF_ERROR(incoming.coverage->add(unit));
    incoming.held[unit.offset] = end;
    incoming.units[unit.sequence] = {unit.offset, false};
  }
  return {};
}

void ReceiverCore::note_landed(Incoming& incoming, const std::vector<Unit>& units) {
  const int64_t now_us = clock_.wall_us();
  IncomingProgress& progress = incoming.progress;
  if (progress.first_us == 0) progress.first_us = now_us;
  progress.last_us = now_us;
  for (const Unit& unit : units) {
    progress.bytes += unit.bytes;
    totals_.bytes += unit.bytes;
  }
  const uint64_t tenths =
      progress.bytes * 10 / std::max<uint64_t>(1, incoming.coverage->bytes_expected());
  if (tenths > progress.landed.size())
    progress.landed.emplace_back(now_us, int64_t(progress.bytes));
}

// Checksums are verified here, not on arrival: the bytes cross from the sender's core to this one's
// once, and are in its cache when the caller copies them.
std::vector<LandedUnit> ReceiverCore::take(size_t bytes_max) {
  std::vector<std::pair<uint64_t, Ready>> chosen;
  {
    const std::lock_guard lock(mutex_);
    size_t bytes = 0;
    while (!ready_.empty()) {
      const Ready& next = ready_.front();
      if (!chosen.empty() && bytes + next.unit.bytes > bytes_max) break;
      bytes += next.unit.bytes;
      ++next.incoming->taken;  // Its memory stays ours
      --next.incoming->ready;
      chosen.emplace_back(next_ticket_++, next);
      taken_.emplace(chosen.back());
      ready_.pop_front();
    }
  }
  std::vector<LandedUnit> units;
  for (const auto& [ticket, ready] : chosen) {
    const Unit& unit = ready.unit;
    const auto bytes =
        std::span<const std::byte>(ready.incoming->grant.memory).subspan(unit.offset, unit.bytes);
    if (!config_.integrity || crc32c(bytes) == unit.crc) {
      units.push_back({ready.incoming->transfer, unit.layer, unit.part, int(unit.first),
                       int(unit.count), bytes, ticket});
    } else {
      refuse_corrupt(ticket);
    }
  }
  return units;
}

void ReceiverCore::refuse_corrupt(uint64_t ticket) {
  Actions after;
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(ticket);
  if (found == taken_.end()) return;
  const IncomingPtr incoming = found->second.incoming;
  const Unit unit = found->second.unit;
  taken_.erase(found);
  --incoming->taken;
  fail(after, incoming,
       Status(ErrorCode::kDataLoss, fmt::format("layer {} rows {}+{}: checksum differs", unit.layer,
                                                unit.first, unit.count)));
  settle(after, incoming);
}

void ReceiverCore::consumed(const LandedUnit& unit) {
  Actions after;
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(unit.ticket);
  if (found == taken_.end()) return;  // finish() has settled it
  const IncomingPtr incoming = found->second.incoming;
  const Unit mine = found->second.unit;
  taken_.erase(found);
  --incoming->taken;
  if (incoming->state != Incoming::State::kStreaming) return settle(after, incoming);

  incoming->moved = clock_.now();
  incoming->consumed_bytes += mine.bytes;
  incoming->units[mine.sequence].second = true;
  for (auto first = incoming->units.begin();
       first != incoming->units.end() && first->first == incoming->credited && first->second.second;
       first = incoming->units.erase(first)) {
    const auto held = incoming->held.find(first->second.first);
    incoming->freed_bytes += held->second - held->first;
    incoming->held.erase(held);
    ++incoming->credited;
  }
  update_complete(*incoming);
  send_credit(after, incoming);
}

// Room goes back in portions while more is at hand, at once when the sender may be waiting for it.
void ReceiverCore::send_credit(Actions& after, const IncomingPtr& incoming) {
  if (incoming->credited == incoming->credit_sent) return;
  const bool busy = incoming->ready + size_t(incoming->taken) > 0;
  if (busy && incoming->freed_bytes < pool_.segment_bytes() / 8) return;
  incoming->credit_sent = incoming->credited;
  incoming->freed_bytes = 0;
  std::string body = Credit{incoming->transfer, incoming->grant.key, incoming->credited}.encode();
  after.add([session = incoming->session, channel = incoming->credit_channel,
             body = std::move(body)] {
    if (channel && channel->notify(body, [](const Status&) {}).ok()) return;
    static_cast<void>(session->send(link::FrameKind::kCredit, body));  // Its loss shows in on_close
  });
}

void ReceiverCore::update_complete(Incoming& incoming) {
  incoming.progress.landed_all = incoming.sealed && incoming.coverage->complete();
  incoming.progress.complete = incoming.progress.landed_all &&
                               incoming.consumed_bytes == incoming.coverage->bytes_expected();
}

void ReceiverCore::on_seal(Actions& after, const IncomingPtr& incoming, const SealMessage& seal) {
  if (incoming->sealed) {
    return fail(after, incoming, Status(ErrorCode::kInvalidArgument, "sealed twice"));
  }
  bool right = seal.tokens == incoming->expected->tokens &&
               seal.rows.size() == 2 * layout_.layers.size() &&
               seal.bytes.size() == seal.rows.size();
  for (size_t index = 0; right && index < seal.rows.size(); ++index) {
    const int layer = int(index / 2);
    const KvPart part = index % 2 == 0 ? KvPart::kKey : KvPart::kValue;
    const auto rows = uint64_t(incoming->coverage->rows_expected(layer, part));
    right = seal.rows[index] == rows &&
            seal.bytes[index] == rows * layout_.layers[size_t(layer)].row_bytes(part);
  }
  if (!right) {
    return fail(after, incoming,
                Status(ErrorCode::kDataLoss, "the seal lists other rows than needed"));
  }
  incoming->sealed = true;
  incoming->sealed_at = incoming->progress.sealed_at = incoming->moved = clock_.now();
  update_complete(*incoming);
  if (incoming->events.on_sealed) {
    after.add([event = incoming->events.on_sealed, info = SealInfo{seal.tokens, seal.first}] {
      event(info);
    });
  }
  // Who waits for `complete` may have consumed the last unit before the seal came.
  if (incoming->progress.complete && incoming->events.on_landed)
    after.add(incoming->events.on_landed);
}

}  // namespace tandem::transfer

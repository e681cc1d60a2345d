// The sender's part that moves rows: units, puts, announcements, and the thread that does it beside
// the engine.
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <optional>

#include "common/crc32c.h"
#include "common/log.h"
#include "transfer/stream/coverage.h"
#include "transfer/stream/sender.h"

namespace tandem::transfer {
namespace {

constexpr size_t kCopyBlockBytes = 16 << 10;  // Stays in the nearest cache for its checksum
constexpr size_t kCopyAheadBytes = 4 << 10;   // Of the next block, fetched while the checksum runs
constexpr size_t kCacheLine = 64;
constexpr uint64_t kAnnounceBytesMax = 1 << 20;
constexpr int kWaitBusyMs = 2;  // While something is under way that no descriptor reports
constexpr int kWaitIdleMs = 100;
constexpr int kSpinRounds = 32;

}  // namespace

void SenderCore::push(const OutgoingPtr& stream, const LayerRows& rows) {
  bool here = false;
  {
    const std::lock_guard lock(mutex_);
    if (stream->state >= Outgoing::State::kAborting) return;
    TANDEM_CHECK(!stream->sealed, "push() after seal()");
    TANDEM_CHECK(rows.layer >= 0 && size_t(rows.layer) < layout_.layers.size(), "no such layer");
    const size_t before = stream->pending.size();
    queue_rows(*stream, rows, KvPart::kKey);
    queue_rows(*stream, rows, KvPart::kValue);
    if (stream->pending.size() > before) {
      stream->pending.back().ends_push = true;
      stream->pending.back().ends_chunk = size_t(rows.layer) + 1 == layout_.layers.size();
    } else if (size_t(rows.layer) + 1 == layout_.layers.size()) {
      stream->announce_due = true;
    }
    if (stream->state != Outgoing::State::kStreaming) return;
    // Shared memory: the copy runs here, where the rows are still in the cache.
    here = stream->segment->put_is_copy();
    if (!here) mark_runnable(stream);
  }
  if (here) {
    pump(stream);
  } else {
    wake();
  }
}

// Cuts one part of a layer into units. Rows that a windowed layer will never look at are left out.
void SenderCore::queue_rows(Outgoing& stream, const LayerRows& rows, KvPart part) {
  const KvLayout::Layer& shape = layout_.layers[size_t(rows.layer)];
  const size_t row_bytes = shape.row_bytes(part);
  if (row_bytes == 0) return;
  const std::span<const std::byte> data = part == KvPart::kKey ? rows.key : rows.value;
  TANDEM_CHECK(data.size() == row_bytes * size_t(rows.count), "rows of another length");
  const int begin = std::max(rows.first, first_row_needed(shape, stream.request.tokens));
  const int end = std::min(rows.first + rows.count, stream.request.tokens);
  if (begin >= end) return;
  const size_t index = 2 * size_t(rows.layer) + size_t(part);
  stream.rows[index] += uint64_t(end - begin);
  stream.bytes[index] += uint64_t(end - begin) * row_bytes;
  // Before the grant the segment's size is unknown; pump() cuts again.
  PendingUnit pending;
  pending.unit.layer = uint16_t(rows.layer);
  pending.unit.part = part;
  pending.unit.first = uint32_t(begin);
  pending.unit.count = uint32_t(end - begin);
  pending.data = data.data() + size_t(begin - rows.first) * row_bytes;
  stream.pending.push_back(pending);
}

void SenderCore::seal(const OutgoingPtr& stream, SealInfo info) {
  bool here = false;
  {
    Actions after;
    const std::lock_guard lock(mutex_);
    if (stream->state >= Outgoing::State::kAborting) return;
    TANDEM_CHECK(!stream->sealed, "seal() twice");
    stream->sealed = true;
    stream->seal = std::move(info);
    stream->sealed_at = stream->moved = clock_.now();
    if (stream->state != Outgoing::State::kStreaming) return;
    send_seal(after, stream);
    here = stream->segment->put_is_copy();
    if (!here) mark_runnable(stream);
  }
  if (here) {
    pump(stream);
  } else {
    wake();
  }
}

bool SenderCore::announcement_due(const Outgoing& stream) const {
  if (stream.unannounced.empty()) return false;
  return stream.announce_due || stream.unannounced_bytes >= kAnnounceBytesMax ||
         stream.unannounced.size() >= kUnitsPerMessageMax ||
         (stream.sealed && stream.pending.empty());
}

void SenderCore::pump(const OutgoingPtr& stream) {
  Actions after;
  std::unique_lock lock(mutex_);
  if (stream->state != Outgoing::State::kStreaming || stream->pumping) return;
  stream->pumping = true;
  Status status;
  while (status.ok() && stream->state == Outgoing::State::kStreaming) {
    std::optional<PendingUnit> next;
    if (!announcement_due(*stream) && !stream->pending.empty()) {
      PendingUnit& front = stream->pending.front();
      const size_t row_bytes = layout_.layers[front.unit.layer].row_bytes(front.unit.part);
      const auto rows = std::min<size_t>(front.unit.count, stream->unit_bytes_max / row_bytes);
      const uint64_t sequence = stream->ring.next();
      if (const auto offset = stream->ring.allocate(rows * row_bytes)) {
        next = front;
        next->unit.sequence = sequence;
        next->unit.offset = *offset;
        next->unit.count = uint32_t(rows);
        next->unit.bytes = uint32_t(rows * row_bytes);
        front.unit.first += uint32_t(rows);
        front.unit.count -= uint32_t(rows);
        front.data += rows * row_bytes;
        next->ends_push = next->ends_push && front.unit.count == 0;
        next->ends_chunk = next->ends_chunk && front.unit.count == 0;
        if (front.unit.count == 0) stream->pending.pop_front();
        stream->waits_for_room = false;
      } else if (!std::exchange(stream->waits_for_room, true)) {
        ++totals_.credit_stalls;
      }
    }
    if (next) {
      if (stream->first_put == TimePoint{}) stream->first_put = clock_.now();
      lock.unlock();
      status = write_unit(*stream, *next);
      lock.lock();
      stream->unannounced.push_back(next->unit);
      stream->unannounced_bytes += next->unit.bytes;
      stream->bytes_sent += next->unit.bytes;
      totals_.bytes += next->unit.bytes;
      stream->announce_due |=
          next->ends_chunk ||
          (next->ends_push && stream->unannounced_bytes >= uint64_t(config_.unit_bytes_min));
    } else if (announcement_due(*stream) ||
               (!stream->unannounced.empty() && !stream->pending.empty())) {
      // Due, or no room: what is there must be announced for room to come back.
      std::vector<Unit> units = std::exchange(stream->unannounced, {});
      stream->unannounced_bytes = 0;
      stream->announce_due = false;
      ++stream->notifications;
      lock.unlock();
      status = announce(stream, std::move(units));
      lock.lock();
      if (!status.ok()) --stream->notifications;
    } else {
      break;
    }
    stream->moved = clock_.now();
  }
  stream->pumping = false;
  const std::shared_ptr<Path> path = stream->path;  // An ended stream lets go of it
  if (!status.ok()) {
    if (stream->state == Outgoing::State::kStreaming) abort_stream(after, stream, status, true);
    break_path(after, path, status);
  }
  if (stream->done_received && stream->state == Outgoing::State::kStreaming)
    end(after, stream, Status());
  settle(after, stream);
  release_path(stream);
}

// Copies and checksums in blocks: each is read from memory once, by the copy, which writes
// meanwhile.
Status SenderCore::write_unit(const Outgoing& stream, PendingUnit& pending) {
  Unit& unit = pending.unit;
  const std::span<const std::byte> source(pending.data, unit.bytes);
  if (!stream.segment->put_is_copy()) {
    if (config_.integrity) unit.crc = crc32c(source);
    return stream.path->channel->put(*stream.segment, unit.offset, source);
  }
  for (size_t done = 0; done < source.size();) {
    const auto block = source.subspan(done, std::min(kCopyBlockBytes, source.size() - done));
    TANDEM_RETURN_IF_ERROR(stream.path->channel->put(*stream.segment, unit.offset + done, block));
    done += block.size();
    if (!config_.integrity) continue;
    const auto ahead = source.subspan(done, std::min(kCopyAheadBytes, source.size() - done));
    for (size_t line = 0; line < ahead.size(); line += kCacheLine) {
      __builtin_prefetch(ahead.data() + line, 0, 2);
    }
    unit.crc = crc32c(block, unit.crc);
  }
  return {};
}

Status SenderCore::announce(const OutgoingPtr& stream, std::vector<Unit> units) {
  Landed landed{stream->request.transfer, stream->key, std::move(units)};
  return stream->path->channel->notify(landed.encode(),
                                       [weak = weak_from_this(), stream](const Status& status) {
                                         if (const auto self = weak.lock())
                                           self->on_announced(stream, status);
                                       });
}

void SenderCore::on_announced(const OutgoingPtr& stream, const Status& status) {
  Actions after;
  const std::lock_guard lock(mutex_);
  --stream->notifications;
  stream->moved = clock_.now();
  const std::shared_ptr<Path> path = stream->path;  // An ended stream lets go of it
  if (!status.ok()) {
    stream->unclean = stream->unclean || !stream->segment->put_is_copy();
    if (stream->state == Outgoing::State::kStreaming) abort_stream(after, stream, status, true);
    break_path(after, path, status);
  }
  settle(after, stream);
  release_path(stream);
}

void SenderCore::mark_runnable(const OutgoingPtr& stream) {
  if (std::exchange(stream->runnable, true)) return;
  runnable_.push_back(stream);
}

bool SenderCore::pump_runnable() {
  std::vector<OutgoingPtr> streams;
  {
    const std::lock_guard lock(mutex_);
    streams.swap(runnable_);
    for (const OutgoingPtr& stream : streams) stream->runnable = false;
  }
  for (const OutgoingPtr& stream : streams) pump(stream);
  return !streams.empty();
}

void SenderCore::progress() {
  polled_.note();
  for (Transport* transport : transports_) transport->progress();
  pump_runnable();
}

void SenderCore::wake() { ::eventfd_write(wake_.get(), 1); }

void SenderCore::run() {
  int idle_rounds = 0;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_thread_) return;
    }
    bool moved = false;
    for (Transport* transport : transports_) moved = transport->progress() || moved;
    moved = pump_runnable() || moved;
    idle_rounds = moved ? 0 : idle_rounds + 1;
    if (idle_rounds > kSpinRounds) wait_for_events();
  }
}

void SenderCore::wait_for_events() {
  bool busy = false;
  {
    const std::lock_guard lock(mutex_);
    if (!runnable_.empty()) return;
    busy = std::any_of(streams_.begin(), streams_.end(),
                       [](const auto& entry) { return entry.second->notifications > 0; });
  }
  std::vector<pollfd> descriptors{{wake_.get(), POLLIN, 0}};
  const bool engine_polls = polled_.now();
  for (Transport* transport : transports_) {
    if (transport->event_fd() < 0 || engine_polls) continue;
    if (!transport->arm()) return;
    descriptors.push_back({transport->event_fd(), POLLIN, 0});
  }
  const int wait_ms = engine_polls ? BusyPolling::kLookAgainMs : busy ? kWaitBusyMs : kWaitIdleMs;
  ::poll(descriptors.data(), descriptors.size(), wait_ms);
  eventfd_t count = 0;
  ::eventfd_read(wake_.get(), &count);
}

}  // namespace tandem::transfer

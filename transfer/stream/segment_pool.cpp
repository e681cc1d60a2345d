#include "transfer/stream/segment_pool.h"

#include <algorithm>

#include "common/log.h"
#include "common/random.h"

namespace tandem::transfer {

Result<SegmentPool> SegmentPool::create(std::vector<Transport*> transports, int64_t landing_bytes,
                                        int64_t segment_bytes) {
  if (transports.empty()) return Status(ErrorCode::kUnavailable, "no transport to receive over");
  SegmentPool pool;
  pool.transports_ = std::move(transports);
  pool.segment_bytes_ = size_t(std::min(segment_bytes, landing_bytes));
  pool.count_ = size_t(landing_bytes) / pool.segment_bytes_;
  Status last;
  for (Transport* source : pool.transports_) {
    pool.source_ = source;
    last = {};
    while (last.ok() && pool.slots_.size() < pool.count_) last = pool.add_slot();
    if (last.ok()) {
      log_info("event=landing_ready transport={} segments={} segment_bytes={}", source->name(),
               pool.count_, pool.segment_bytes_);
      return pool;
    }
    log_warn("event=landing_refused transport={} reason={}", source->name(),
             tandem::quoted(last.to_string()));
    pool.free_.clear();
    pool.slots_.clear();
  }
  return last;
}

Status SegmentPool::add_slot() {
  auto memory = source_->allocate(segment_bytes_);
  if (!memory) return memory.status();
  // A place that a settled segment left empty comes first.
  const auto empty = std::find_if(slots_.begin(), slots_.end(),
                                  [](const Slot& slot) { return slot.memory == nullptr; });
  const auto index = size_t(empty - slots_.begin());
  if (empty == slots_.end()) slots_.emplace_back();
  slots_[index].memory = *std::move(memory);
  free_.push_back(index);
  return {};
}

bool SegmentPool::offers(const Transport& transport) const {
  const bool known =
      std::find(transports_.begin(), transports_.end(), &transport) != transports_.end();
  return known && (&transport == source_ || !transport.capabilities().one_sided);
}

Result<SegmentPool::Grant> SegmentPool::acquire(Transport& transport) {
  TANDEM_CHECK(!free_.empty() && offers(transport), "acquire() without room");
  const size_t index = free_.back();
  Slot& slot = slots_[index];
  // UCX rounds up to pages; what we grant is what was asked for.
  Grant grant{index, &transport, slot.memory->memory().first(segment_bytes_), "", random_u64()};
  if (transport.capabilities().one_sided) {
    grant.descriptor = slot.memory->descriptor();
  } else {
    auto share = transport.share(grant.memory);
    if (!share) return share.status();
    slot.share = *std::move(share);
    grant.descriptor = slot.share->descriptor();
  }
  free_.pop_back();
  slot.state = State::kUsed;
  slot.key = grant.key;
  ++used_count_;
  return grant;
}

void SegmentPool::reuse(size_t index) {
  Slot& slot = slots_[index];
  slot.share.reset();
  slot.state = State::kFree;
  free_.push_back(index);
}

void SegmentPool::release(const Grant& grant) {
  --used_count_;
  reuse(grant.slot);
}

void SegmentPool::retire(const Grant& grant, const ProcessIdentity& owner) {
  // Without its share nothing of a two-sided transport reaches the memory.
  if (!grant.transport->capabilities().one_sided || known_dead(owner)) return release(grant);
  --used_count_;
  ++retired_count_;
  ++retired_total_;
  Slot& slot = slots_[grant.slot];
  slot.state = State::kRetired;
  slot.owner = owner;
  Status replaced(ErrorCode::kResourceExhausted, "as much as the landing memory is aside already");
  if (retired_count_ <= count_) replaced = add_slot();
  log_warn("event=segment_retired retired={} replaced={} owner_pid={} detail={}", retired_count_,
           replaced.ok(), owner.pid, tandem::quoted(replaced.message()));
}

void SegmentPool::settle(uint64_t key) {
  for (size_t index = 0; index < slots_.size(); ++index) {
    Slot& slot = slots_[index];
    if (slot.state != State::kRetired || slot.key != key) continue;
    --retired_count_;
    // The replacement has its place: the pool shrinks back to what landing_bytes pays for.
    const size_t living = used_count_ + free_.size();
    if (living < count_) {
      reuse(index);
    } else {
      slot.memory.reset();
      slot.state = State::kFree;
      slot.key = 0;
    }
    log_info("event=segment_settled retired={}", retired_count_);
  }
}

void SegmentPool::settle_dead() {
  std::vector<uint64_t> dead;
  for (const Slot& slot : slots_) {
    if (slot.state == State::kRetired && known_dead(slot.owner)) dead.push_back(slot.key);
  }
  for (const uint64_t key : dead) settle(key);
}

}  // namespace tandem::transfer

#include "scheduler/prefix_index.h"

#include <algorithm>
#include <bit>

namespace tandem::scheduler {
namespace {

constexpr int64_t kCapacityMin = 64;

// Hashes come from outside: spread them before the low bits choose a slot.
size_t spread(uint64_t hash) {
  hash ^= hash >> 32;
  hash *= 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}
size_t table_size(int64_t capacity) {
  return std::bit_ceil(static_cast<uint64_t>(capacity) * 4 / 3 + 1);
}

}  // namespace

PrefixIndex::PrefixIndex(int64_t bytes_max) : epochs_(kWorkersMax) {
  const int64_t left = bytes_max - static_cast<int64_t>(epochs_.size() * sizeof(uint16_t));
  const auto needs = [](int64_t capacity) {
    return capacity * static_cast<int64_t>(sizeof(Block)) +
           static_cast<int64_t>(table_size(capacity) * sizeof(uint32_t));
  };
  int64_t capacity = std::max(kCapacityMin, left / static_cast<int64_t>(sizeof(Block)));
  capacity = std::min<int64_t>(capacity, kNone - 1);
  while (capacity > kCapacityMin && needs(capacity) > left) capacity -= capacity / 64 + 1;
  capacity_ = static_cast<uint32_t>(std::max(capacity, kCapacityMin));
  blocks_ = std::make_unique_for_overwrite<Block[]>(capacity_);  // Pages come as they are used
  table_.assign(table_size(capacity_), 0);
}

int64_t PrefixIndex::bytes() const {
  return static_cast<int64_t>(capacity_ * sizeof(Block) + table_.size() * sizeof(uint32_t) +
                              epochs_.size() * sizeof(uint16_t));
}

// Where `hash` is, or the empty slot where it would go.
size_t PrefixIndex::slot_of(uint64_t hash) const {
  const size_t mask = table_.size() - 1;
  size_t slot = spread(hash) & mask;
  while (table_[slot] != 0 && blocks_[table_[slot] - 1].hash != hash) slot = (slot + 1) & mask;
  return slot;
}

uint32_t PrefixIndex::find(uint64_t hash) const { return table_[slot_of(hash)] - 1; }

void PrefixIndex::unlink(uint32_t at) {
  const Block& block = blocks_[at];
  (block.newer == kNone ? newest_ : blocks_[block.newer].older) = block.older;
  (block.older == kNone ? oldest_ : blocks_[block.older].newer) = block.newer;
}

void PrefixIndex::link_newest(uint32_t at) {
  blocks_[at].newer = kNone;
  blocks_[at].older = newest_;
  (newest_ == kNone ? oldest_ : blocks_[newest_].newer) = at;
  newest_ = at;
}

void PrefixIndex::touch(uint32_t at) {
  if (newest_ == at) return;
  unlink(at);
  link_newest(at);
}

void PrefixIndex::erase(uint32_t at) {
  // Close the gap in the table: later entries of the run move up.
  const size_t mask = table_.size() - 1;
  size_t gap = slot_of(blocks_[at].hash);
  for (size_t next = (gap + 1) & mask; table_[next] != 0; next = (next + 1) & mask) {
    const size_t home = spread(blocks_[table_[next] - 1].hash) & mask;
    if (((next - home) & mask) < ((next - gap) & mask)) continue;
    table_[gap] = table_[next];
    gap = next;
  }
  table_[gap] = 0;
  unlink(at);
  // The last block takes the place, so that those in use stay dense.
  const uint32_t last = --size_;
  if (last == at) return;
  table_[slot_of(blocks_[last].hash)] = at + 1;
  Block& moved = blocks_[at] = blocks_[last];
  (moved.newer == kNone ? newest_ : blocks_[moved.newer].older) = at;
  (moved.older == kNone ? oldest_ : blocks_[moved.older].newer) = at;
}

void PrefixIndex::store(uint64_t hash, int worker) {
  if (worker < 0 || worker >= kWorkersMax) return;
  uint32_t at = find(hash);
  if (at == kNone) {
    if (size_ == capacity_) erase(oldest_);
    at = size_++;
    blocks_[at].hash = hash;
    blocks_[at].holders = 0;
    table_[slot_of(hash)] = at + 1;  // blocks_[at] has the hash: the slot found is empty or its own
    link_newest(at);
  } else {
    touch(at);
  }
  Block& block = blocks_[at];
  const auto index = static_cast<uint16_t>(worker);
  const auto begin = block.held_by.begin();
  auto end = std::remove_if(begin, begin + block.holders, [&](const Holder& holder) {
    return holder.worker == index || !valid(holder);
  });
  if (end == block.held_by.end()) --end;
  std::move_backward(begin, end, end + 1);
  block.held_by[0] = {index, epochs_[index]};
  block.holders = static_cast<uint16_t>(end - begin + 1);
}

void PrefixIndex::remove(uint64_t hash, int worker) {
  const uint32_t at = find(hash);
  if (at == kNone) return;
  Block& block = blocks_[at];
  const auto begin = block.held_by.begin();
  const auto end = std::remove_if(begin, begin + block.holders, [&](const Holder& holder) {
    return holder.worker == worker || !valid(holder);
  });
  block.holders = static_cast<uint16_t>(end - begin);
  if (block.holders == 0) erase(at);
}

void PrefixIndex::forget_worker(int worker) {
  if (worker >= 0 && worker < kWorkersMax) ++epochs_[static_cast<size_t>(worker)];
}

void PrefixIndex::match(std::span<const uint64_t> blocks, std::vector<PrefixMatch>& out) {
  out.clear();
  int depth = 0;
  std::array<uint32_t, 1024> path;  // For the order of use; longer prompts' tails are not touched
  for (const uint64_t hash : blocks) {
    const uint32_t at = find(hash);
    if (at == kNone) break;
    const Block& block = blocks_[at];
    bool any = false;
    for (int i = 0; i < block.holders; ++i) {
      const Holder& holder = block.held_by[static_cast<size_t>(i)];
      if (!valid(holder)) continue;
      if (depth == 0) {
        out.push_back({holder.worker, 1});
        any = true;
        continue;
      }
      for (PrefixMatch& match : out)
        if (match.worker == holder.worker && match.blocks == depth) {
          ++match.blocks;
          any = true;
        }
    }
    if (!any) break;
    if (static_cast<size_t>(depth) < path.size()) path[static_cast<size_t>(depth)] = at;
    ++depth;
  }
  // From the end on, so that a prefix outlives what builds on it.
  for (int i = std::min<int>(depth, static_cast<int>(path.size())); i-- > 0;)
    touch(path[static_cast<size_t>(i)]);
}

int PrefixIndex::latest(uint64_t hash) const {
  const uint32_t at = find(hash);
  if (at == kNone || blocks_[at].holders == 0) return -1;
  const Holder& holder = blocks_[at].held_by[0];
  return valid(holder) ? holder.worker : -1;
}

}  // namespace tandem::scheduler

// Which workers hold the KV of which prompt blocks, in memory that never grows beyond its limit:
// one array of blocks and one hash table, taken at construction; the least recently used block
// makes room. Also serves as the map from a session to its last decode worker. Pure; one thread.
//
// A block is named by the chained hash of the prompt up to its end, so that equal names mean equal
// prefixes. Up to kWorkersPerBlock workers are remembered per block, the latest first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tandem::scheduler {

struct PrefixMatch {
  int worker = -1;
  int blocks = 0;  // Consecutive, from the prompt's first
};

class PrefixIndex {
 public:
  static constexpr int kWorkersPerBlock = 6;
  static constexpr int kWorkersMax = 1 << 16;  // Indexes beyond it are ignored

  explicit PrefixIndex(int64_t bytes_max);

  void store(uint64_t hash, int worker);
  void remove(uint64_t hash, int worker);
  // Nothing that this index held counts any more, for the next worker with it neither.
  void forget_worker(int worker);

  // The longest prefix on each worker that holds the first block; O(blocks). Counts as use.
  void match(std::span<const uint64_t> blocks, std::vector<PrefixMatch>& out);
  // The worker that stored `hash` last; -1: none.
  int latest(uint64_t hash) const;

  int64_t size() const { return size_; }
  int64_t bytes() const;

 private:
  // A worker's index and the count of workers that had that index before it.
  struct Holder {
    uint16_t worker;
    uint16_t epoch;
  };
  struct Block {
    uint64_t hash;
    uint32_t newer, older;  // Order of use
    uint16_t holders;
    std::array<Holder, kWorkersPerBlock> held_by;
  };
  static constexpr uint32_t kNone = 0xffffffff;

  uint32_t find(uint64_t hash) const;
  size_t slot_of(uint64_t hash) const;
  bool valid(const Holder& holder) const { return epochs_[holder.worker] == holder.epoch; }
  void unlink(uint32_t at);
  void link_newest(uint32_t at);
  void touch(uint32_t at);
  void erase(uint32_t at);

  uint32_t capacity_ = 0;
  uint32_t size_ = 0;
  std::unique_ptr<Block[]> blocks_;  // [0, size_) are in use
  std::vector<uint32_t> table_;      // Index + 1 of a block; 0: empty. Linear probing
  std::vector<uint16_t> epochs_;
  uint32_t newest_ = kNone;
  uint32_t oldest_ = kNone;
};

}  // namespace tandem::scheduler

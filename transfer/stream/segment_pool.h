// SegmentPool: a receiver's landing memory, cut into segments of which each belongs to one transfer
// at a time.
//
// Memory comes from the first transport that can give it; transports that are not one-sided share
// it, with a fresh key for every grant that dies with the grant. Memory that a silent peer could
// still write to (one_sided) is retired: kept aside, and replaced while no more than the configured
// landing memory is aside. One thread at a time; `transports` outlive it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/status.h"
#include "transfer/stream/process_identity.h"
#include "transfer/transport.h"

namespace tandem::transfer {

class SegmentPool {
 public:
  struct Grant {
    size_t slot = 0;
    Transport* transport = nullptr;
    std::span<std::byte> memory;
    std::string descriptor;
    uint64_t key = 0;
  };

  static Result<SegmentPool> create(std::vector<Transport*> transports, int64_t landing_bytes,
                                    int64_t segment_bytes);

  bool has_free() const { return !free_.empty(); }
  // Can a peer be granted room over this transport?
  bool offers(const Transport& transport) const;
  // Requires: has_free().
  Result<Grant> acquire(Transport& transport);
  // No byte will be written by the grant's owner any more.
  void release(const Grant& grant);
  // The owner failed without saying so.
  void retire(const Grant& grant, const ProcessIdentity& owner);
  // Its owner says after all, or is known dead: memory may be used again.
  void settle(uint64_t key);
  void settle_dead();

  size_t retired() const { return retired_count_; }
  uint64_t retired_total() const { return retired_total_; }
  int64_t bytes_used() const { return int64_t(segment_bytes_ * used_count_); }
  size_t segment_bytes() const { return segment_bytes_; }

 private:
  enum class State { kFree, kUsed, kRetired };
  struct Slot {
    std::unique_ptr<Segment> memory;
    std::unique_ptr<Segment> share;  // Of a transport that is not one-sided, while granted
    State state = State::kFree;
    uint64_t key = 0;
    ProcessIdentity owner;
  };

  SegmentPool() = default;
  void reuse(size_t slot);
  Status add_slot();

  std::vector<Transport*> transports_;
  Transport* source_ = nullptr;  // Where memory comes from
  size_t segment_bytes_ = 0;
  size_t count_ = 0;  // Segments that landing_bytes pays for
  std::vector<Slot> slots_;
  std::vector<size_t> free_;
  size_t used_count_ = 0;
  size_t retired_count_ = 0;
  uint64_t retired_total_ = 0;
};

}  // namespace tandem::transfer

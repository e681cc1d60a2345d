// The per-thread cells behind metrics.h. Only metrics*.cpp use this.
//
// A cell is a number of which every thread has its own copy; only that thread writes it. Copies
// live in blocks that are allocated when a thread first touches them. When a thread ends, its
// copies are added to `ended`, so that totals never fall.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace tandem::metrics {

inline constexpr uint32_t kCellsPerBlock = 256;
inline constexpr uint32_t kBlocksMax = 256;
inline constexpr uint32_t kCellsMax = kCellsPerBlock * kBlocksMax;

struct alignas(64) CellBlock {
  std::array<std::atomic<double>, kCellsPerBlock> cells{};
};

class ThreadCells {
 public:
  ~ThreadCells();
  // This thread's copy of `cell`.
  std::atomic<double>& cell(uint32_t cell);
  // Any thread.
  double read(uint32_t cell) const;

 private:
  std::array<std::atomic<CellBlock*>, kBlocksMax> blocks_{};
};

class Cells {
 public:
  static Cells& get();
  // `count` neighbouring cells in one block. Requires: count <= kCellsPerBlock, and room is left.
  uint32_t allocate(uint32_t count);
  double total(uint32_t cell) const;
  static void add(uint32_t cell, double amount);

 private:
  friend struct ThreadLifetime;
  void enter(ThreadCells* thread);
  void leave(ThreadCells* thread);

  mutable std::mutex mutex_;
  std::vector<ThreadCells*> threads_;  // Guarded by mutex_
  ThreadCells ended_;                  // Guarded by mutex_
  uint32_t next_ = 1;                  // Guarded by mutex_; cell 0 is the void
};

}  // namespace tandem::metrics

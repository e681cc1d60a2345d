#include "common/metric_cells.h"

#include <algorithm>

#include "common/status.h"

namespace tandem::metrics {

ThreadCells::~ThreadCells() {
  for (auto& block : blocks_) delete block.load(std::memory_order_relaxed);
}

std::atomic<double>& ThreadCells::cell(uint32_t cell) {
  auto& slot = blocks_[cell / kCellsPerBlock];
  CellBlock* block = slot.load(std::memory_order_relaxed);
  if (block == nullptr) [[unlikely]] {
    block = new CellBlock;
    slot.store(block, std::memory_order_release);
  }
  return block->cells[cell % kCellsPerBlock];
}

double ThreadCells::read(uint32_t cell) const {
  const CellBlock* block = blocks_[cell / kCellsPerBlock].load(std::memory_order_acquire);
  return block == nullptr ? 0 : block->cells[cell % kCellsPerBlock].load(std::memory_order_relaxed);
}

// Enters a thread's cells on its first count and folds them into the total at its end. Trivial
// state stays readable after the destructor, so that a late count from another destructor is safe:
// it is dropped.
struct ThreadLifetime {
  enum class State { kNew, kAlive, kEnded };
  static thread_local State state;
  static thread_local ThreadCells* current;

  ThreadLifetime() {
    current = new ThreadCells;
    Cells::get().enter(current);
    state = State::kAlive;
  }
  ~ThreadLifetime() {
    state = State::kEnded;
    Cells::get().leave(current);
    delete std::exchange(current, nullptr);
  }
};
thread_local ThreadLifetime::State ThreadLifetime::state = State::kNew;
thread_local ThreadCells* ThreadLifetime::current = nullptr;

Cells& Cells::get() {
  static auto* cells = new Cells;  // Never destroyed: threads may end after main does.
  return *cells;
}

void Cells::add(uint32_t cell, double amount) {
  if (ThreadLifetime::state != ThreadLifetime::State::kAlive) [[unlikely]] {
    if (ThreadLifetime::state == ThreadLifetime::State::kEnded) return;
    static thread_local ThreadLifetime lifetime;
    (void)lifetime;
  }
  // One writer: a load and a store, no read-modify-write.
  std::atomic<double>& mine = ThreadLifetime::current->cell(cell);
  mine.store(mine.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

uint32_t Cells::allocate(uint32_t count) {
  const std::lock_guard lock(mutex_);
  const uint32_t room = kCellsPerBlock - next_ % kCellsPerBlock;
  if (room < count) next_ += room;
  TANDEM_CHECK(count <= kCellsPerBlock && next_ + count <= kCellsMax, "too many metric series");
  return std::exchange(next_, next_ + count);
}

double Cells::total(uint32_t cell) const {
  const std::lock_guard lock(mutex_);
  double sum = ended_.read(cell);
  for (const ThreadCells* thread : threads_) sum += thread->read(cell);
  return sum;
}

void Cells::enter(ThreadCells* thread) {
  const std::lock_guard lock(mutex_);
  threads_.push_back(thread);
}

void Cells::leave(ThreadCells* thread) {
  const std::lock_guard lock(mutex_);
  for (uint32_t cell = 0; cell < next_; ++cell) {
    if (const double value = thread->read(cell); value != 0) {
      std::atomic<double>& sum = ended_.cell(cell);
      sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
    }
  }
  std::erase(threads_, thread);
}

}  // namespace tandem::metrics

// The sim engine's KV memory: one sequence's rows, real bytes that say which tokens they stand for.
//
// A row is a function of (chain, layer, part, position), where `chain` is a hash over the
// sequence's tokens up to that position. Its first word gives the chain back, so that a worker that
// imported rows knows where the sequence stands; every other word must agree with it, so that a
// wrong row is noticed.
//
// Address space for the whole context is taken at once, memory only as rows are written. One thread
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/status.h"
#include "engine/engine.h"

namespace tandem {

class SimRows {
 public:
  struct Shape {
    int layers = 0;
    uint32_t row_bytes = 0;  // Of a key row and of a value row; a multiple of 8
    int context = 0;
  };

  static Result<SimRows> make(const Shape& shape);
  SimRows() = default;
  SimRows(SimRows&& other) noexcept;
  SimRows& operator=(SimRows&& other) noexcept;
  ~SimRows();

  // Where rows first .. first + count - 1 live: contiguous.
  std::span<std::byte> rows(int layer, KvPart part, int first, int count) const;
  // Writes the rows of positions first, first + 1, ... whose chains are given.
  void fill(int layer, int first, std::span<const uint64_t> chains);
  // The chain that the row at `position` claims.
  uint64_t chain_at(int position) const;
  // How many of the position's rows disagree with `chain`.
  int mismatches(int position, uint64_t chain) const;
  // Gives the memory back; rows read as zeros afterwards.
  void clear();

 private:
  void release();

  Shape shape_;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tandem

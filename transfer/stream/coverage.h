// Coverage: which rows of one transfer have landed. Refuses rows that nobody expects and rows that
// came before, so that "everything is there" means every row of every layer exactly once. A pure
// value; one thread at a time.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "common/status.h"
#include "engine/engine.h"
#include "transfer/stream/unit_codec.h"

namespace tandem::transfer {

// The first row of `layer` that a receiver of `tokens` tokens needs: windowed layers need the last
// ones only.
int first_row_needed(const KvLayout::Layer& layer, int tokens);

class Coverage {
 public:
  // `layout` must outlive this.
  Coverage(const KvLayout& layout, int tokens);

  // Adds the rows of a unit. kInvalidArgument for what no honest sender sends: an unknown layer,
  // rows outside those needed, a length that is not that of the rows, rows that are there already.
  Status add(const Unit& unit);

  bool complete() const { return bytes_ == bytes_expected_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t bytes_expected() const { return bytes_expected_; }
  int64_t rows_expected(int layer, KvPart part) const;
  // Names the first rows that are missing, for the message of a failure.
  std::string missing() const;

 private:
  using Ranges = std::map<uint32_t, uint32_t>;  // First row of a run to the row behind it
  const KvLayout& layout_;
  const int tokens_;
  std::vector<std::array<Ranges, 2>> landed_;  // Per layer and part
  uint64_t bytes_ = 0;
  uint64_t bytes_expected_ = 0;
};

}  // namespace tandem::transfer

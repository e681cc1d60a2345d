// Recorded arrivals: Mooncake's JSONL and the CSV files of Azure, splitwise and BurstGPT.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "common/status.h"

namespace tandem::bench {

struct TraceRow {
  double at_s = 0.0;  // Since the first row
  int input_tokens = 0;
  int output_tokens = 0;
  // One id per block of 512 prompt tokens; equal ids from the start mean an equal prefix. Mooncake
  // only.
  std::vector<uint64_t> hash_ids;
};

enum class TraceFormat { kJsonl, kCsv };

// At most `limit` rows (0: all). A failure names the line: a missing column or field, a length that
// is not a positive number, a negative time, or one before the line above.
Result<std::vector<TraceRow>> read_trace(std::istream& in, TraceFormat format,
                                         const std::string& name, size_t limit = 0);
// The format follows the ending: .jsonl or .csv.
Result<std::vector<TraceRow>> load_trace(const std::string& file, size_t limit = 0);

}  // namespace tandem::bench

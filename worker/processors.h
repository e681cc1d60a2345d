// Which processors a thread may run on, for the halves of a partitioned worker. Plain functions.
#pragma once

#include <vector>

#include "common/config.h"

namespace tandem::worker {

// Those that this thread may use now, ascending.
std::vector<int> processors_allowed();
// Keeps this thread, and compute threads that it starts later, on `processors`. What the system
// refuses is logged: the work goes on, less well placed.
void stay_on(const std::vector<int>& processors);

// How `threads` and `processors` are divided: at least one thread each, and processors apart where
// there are two or more.
struct Partition {
  int prefill_threads = 1;
  int decode_threads = 1;
  std::vector<int> prefill_processors;
  std::vector<int> decode_processors;
};
Partition divide(int threads, const std::vector<int>& processors, const ShareConfig& share);

}  // namespace tandem::worker

#include "worker/processors.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/log.h"

namespace tandem::worker {

std::vector<int> processors_allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

void stay_on(const std::vector<int>& processors) {
  if (processors.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(processor, &set);
  if (::sched_setaffinity(0, sizeof set, &set) == 0) return;
  log_warn("event=affinity_refused reason={}", tandem::quoted(std::strerror(errno)));
}

Partition divide(int threads, const std::vector<int>& processors, const ShareConfig& share) {
  // Prefill's part of `total`, rounded; both sides get one at least where there are two.
  const auto part = [&](int total) {
    const int sum = share.prefill + share.decode;
    return std::clamp((2 * total * share.prefill + sum) / (2 * sum), 1, std::max(1, total - 1));
  };
  Partition partition;
  partition.prefill_threads = part(threads);
  partition.decode_threads = std::max(1, threads - partition.prefill_threads);
  partition.prefill_processors = partition.decode_processors = processors;
  if (processors.size() >= 2) {
    const auto border = processors.begin() + part(static_cast<int>(processors.size()));
    partition.prefill_processors.assign(processors.begin(), border);
    partition.decode_processors.assign(border, processors.end());
  }
  return partition;
}

}  // namespace tandem::worker

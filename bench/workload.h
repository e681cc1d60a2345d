// The requests of a run, in the order in which they are sent: from lengths, or from a trace. One
// owner.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "bench/options.h"
#include "bench/prompt_maker.h"
#include "bench/trace.h"
#include "common/status.h"

namespace tandem::bench {

enum class Group { kMain, kLong };  // kLong: the disturbing prompts of the mixed scenario

struct PlannedRequest {
  size_t index = 0;
  Group group = Group::kMain;
  double at_s = 0.0;  // Open loop: seconds after the start
  PromptShape prompt;
  int output_tokens = 1;
};

class Workload {
 public:
  // Reads the trace, if there is one.
  static Result<Workload> make(const Options& options);

  // The next request; none at the end.
  std::optional<PlannedRequest> next();
  // A long prompt of the mixed scenario.
  PlannedRequest next_long();
  // How many there are in all; 0: no limit.
  size_t total() const { return total_; }
  // Rows of the trace that --max-input or --max-output made shorter.
  size_t clipped() const { return clipped_; }

 private:
  explicit Workload(const Options& options) : options_(options) {}
  PlannedRequest from_trace(size_t index);
  PlannedRequest from_lengths(size_t index) const;

  Options options_;
  std::vector<TraceRow> rows_;
  std::vector<double> arrivals_;
  size_t total_ = 0;
  size_t next_ = 0;
  size_t next_long_ = 0;
  size_t clipped_ = 0;
};

}  // namespace tandem::bench

// A progress bar on a terminal, a plain line every few seconds elsewhere. Standard error. One
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem::bench {

struct ProgressView {
  double elapsed_s = 0.0;
  double duration_s = 0.0;  // Planned; 0: unknown
  size_t done = 0;
  size_t failed = 0;
  size_t total = 0;  // 0: unknown
  int waiting = 0;
  int running = 0;
  int64_t tokens = 0;
};

class Progress {
 public:
  Progress(bool enabled, std::string label);
  void update(const ProgressView& view);
  // The last state, and a line end. Idempotent.
  void finish(const ProgressView& view);

 private:
  std::string line(const ProgressView& view, bool with_bar) const;

  const bool enabled_;
  const bool terminal_;
  const std::string label_;
  double next_line_s_ = 0.0;
  bool finished_ = false;
};

}  // namespace tandem::bench

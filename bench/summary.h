// The figures that people look at first, as rows: the closing table and the HTML report show the
// same ones.
#pragma once

#include <string>
#include <vector>

#include "bench/options.h"
#include "bench/run_result.h"

namespace tandem::bench {

struct SummaryRow {
  std::string name;
  std::string unit;
  std::vector<double> values;  // One per run
  int decimals = 0;
  bool higher_is_better = false;
  bool neutral = false;  // A count that is neither good nor bad
};

struct SummarySection {
  std::string title;
  std::vector<SummaryRow> rows;
  bool latency = false;  // Rows are statistics of one latency
};

// Requires: `runs` is not empty.
std::vector<SummarySection> summarize(const Options& options, const std::vector<RunResult>& runs);

// 1234567.8 with one decimal: "1,234,567.8".
std::string format_number(double value, int decimals);

// The closing table for a terminal.
std::string summary_table(const Options& options, const std::vector<RunResult>& runs);

}  // namespace tandem::bench

// The log of live decisions: one JSON object per line, written when a request's attempt has ended,
// so that a line holds what was known, what was chosen and what became of it. `tandem-sim
// --replay-decisions` reads it. Plain values and pure functions; any thread. Whoever writes the
// file bounds it. No line holds a prompt, an answer or a tenant's name.
#pragma once

#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "scheduler/scheduler.h"

namespace tandem::scheduler {

// Candidates of one line; more are not written. The chosen ones come first.
inline constexpr size_t kLoggedCandidatesMax = 32;
inline constexpr size_t kDecisionLineBytesMax = 64 << 10;  // Longer lines are refused by the reader

struct DecisionRecord {
  std::string request;   // The request's id, for people
  double at_ms = 0;      // Of the decision, since the start of the log
  double waited_ms = 0;  // From submit() to the decision

  // What was asked
  int prompt_tokens = 0;
  int cached_tokens = 0;
  int max_tokens = 0;
  int choices = 1;
  int priority = 0;
  double ttft_slo_ms = 0;
  double tpot_slo_ms = 0;

  // What was chosen: "remote", "local", "prefill_only" or "refused"
  std::string path;
  std::string prefill;  // Workers by name; empty: none
  std::string decode;
  std::string reason;
  double predicted_ttft_ms = 0;
  double predicted_ttft_bound_ms = 0;
  double predicted_tpot_ms = 0;

  // What was known of the workers just before the decision, kLoggedCandidatesMax at most
  std::vector<WorkerState> candidates;

  // What became of it; negative: not known
  std::string outcome;  // "ok", "refused", "cancelled" or an error code's name
  double ttft_ms = -1;  // From submit()
  double tpot_ms = -1;
  int output_tokens = -1;
};

std::string_view path_name(Path path);  // "remote", "local", "prefill_only", "refused"

// One line, with its newline.
std::string decision_line(const DecisionRecord& record);
// The message of a failure says which field is missing or wrong.
Result<DecisionRecord> parse_decision(std::string_view line);
// All lines; empty ones are skipped. A failure names file and line. A last line without a newline
// that does not parse was cut short by a crash, and is left out.
Result<std::vector<DecisionRecord>> read_decisions(std::istream& in, const std::string& name);

}  // namespace tandem::scheduler

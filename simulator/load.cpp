#include "simulator/load.h"

#include <algorithm>

#include "common/random.h"

namespace tandem::simulator {
namespace {

void take_blocks(SimRequest& request, const std::vector<uint64_t>& hashes) {
  const auto full = static_cast<size_t>(request.prompt_tokens / kTraceBlockTokens);
  request.blocks.assign(hashes.begin(),
                        hashes.begin() + static_cast<int64_t>(std::min(full, hashes.size())));
}

}  // namespace

double trace_span_s(const std::vector<bench::TraceRow>& rows) {
  const double last_s = rows.back().at_s;
  const auto count = static_cast<double>(rows.size());
  return last_s > 0 ? last_s * count / (count - 1) : 1.0;
}

std::vector<SimRequest> cut_trace(const std::vector<bench::TraceRow>& rows, const TraceCut& cut) {
  const double span_s = trace_span_s(rows);
  const double window_s = cut.window_s > 0 ? std::min(cut.window_s, span_s) : span_s;
  const size_t first =
      cut.seed == 0 ? 0 : static_cast<size_t>(counter_random(cut.seed, 0) % rows.size());
  std::vector<SimRequest> out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bench::TraceRow& row = rows[(first + i) % rows.size()];
    const double at_s = row.at_s - rows[first].at_s + (first + i < rows.size() ? 0 : span_s);
    if (at_s >= window_s && i > 0) break;
    SimRequest request{at_s / cut.scale, row.input_tokens, row.output_tokens, {}};
    take_blocks(request, row.hash_ids);
    out.push_back(std::move(request));
  }
  return out;
}

Result<std::vector<SimRequest>> synthetic_load(const bench::Options& options) {
  auto workload = bench::Workload::make(options);
  if (!workload.ok()) return workload.status();
  if (!options.open_loop() || workload->total() == 0)
    return Status(ErrorCode::kInvalidArgument,
                  "a simulated load is open: give --trace, or --request-rate with --num-prompts or "
                  "--duration");
  std::vector<SimRequest> out;
  while (auto planned = workload->next()) {
    SimRequest request{planned->at_s, planned->prompt.tokens, planned->output_tokens, {}};
    take_blocks(request, planned->prompt.hash_ids);
    // A shared prefix is blocks that all have; no other prompt repeats one.
    for (int i = 0; i < planned->prompt.shared_prefix / kTraceBlockTokens; ++i)
      request.blocks.push_back(counter_random(options.seed, static_cast<uint64_t>(i)));
    out.push_back(std::move(request));
  }
  return out;
}

}  // namespace tandem::simulator

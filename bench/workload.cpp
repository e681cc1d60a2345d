#include "bench/workload.h"

#include <algorithm>
#include <cmath>

#include "common/random.h"

namespace tandem::bench {
namespace {

// Prompts of the long kind never repeat one of the others.
constexpr uint64_t kLongPrompts = uint64_t{1} << 40;

int draw_length(const LengthRange& range, uint64_t key, size_t index) {
  const auto width = static_cast<uint64_t>(range.high - range.low) + 1;
  return range.low + static_cast<int>(counter_random(key, index) % width);
}

}  // namespace

Result<Workload> Workload::make(const Options& options) {
  Workload workload(options);
  if (!options.trace.empty()) {
    auto rows = load_trace(options.trace, static_cast<size_t>(options.trace_limit));
    if (!rows.ok()) return rows.status();
    workload.rows_ = std::move(*rows);
    workload.total_ = workload.rows_.size();
    if (options.num_prompts)
      workload.total_ = std::min(workload.total_, static_cast<size_t>(*options.num_prompts));
    return workload;
  }
  if (options.num_prompts)
    workload.total_ = static_cast<size_t>(*options.num_prompts);
  else if (options.duration_s == 0.0)
    workload.total_ = 100;
  if (!options.open_loop()) return workload;
  if (workload.total_ == 0)
    workload.total_ = static_cast<size_t>(std::ceil(options.request_rate * options.duration_s));
  workload.arrivals_ = arrival_times({.kind = options.arrival,
                                      .rate = options.request_rate,
                                      .burstiness = options.burstiness,
                                      .ramp_from = options.ramp_from,
                                      .ramp_to = options.ramp_to,
                                      .count = workload.total_,
                                      .seed = options.seed});
  return workload;
}

std::optional<PlannedRequest> Workload::next() {
  if (total_ != 0 && next_ >= total_) return {};
  const size_t index = next_++;
  return rows_.empty() ? from_lengths(index) : from_trace(index);
}

PlannedRequest Workload::next_long() {
  const size_t number = next_long_++;
  PlannedRequest request;
  request.index = number;
  request.group = Group::kLong;
  request.prompt.tokens = options_.mixed.long_tokens;
  request.prompt.unique = kLongPrompts + number;
  request.output_tokens = options_.mixed.long_output;
  return request;
}

PlannedRequest Workload::from_lengths(size_t index) const {
  PlannedRequest request;
  request.index = index;
  request.at_s = arrivals_.empty() ? 0.0 : arrivals_[index];
  request.prompt.shared_prefix = options_.shared_prefix_len;
  request.prompt.tokens =
      options_.shared_prefix_len +
      draw_length(options_.input_range(), counter_random(options_.seed, 4), index);
  request.prompt.unique = index;
  request.output_tokens =
      draw_length(options_.output_range(), counter_random(options_.seed, 5), index);
  return request;
}

PlannedRequest Workload::from_trace(size_t index) {
  TraceRow& row = rows_[index];
  PlannedRequest request;
  request.index = index;
  request.at_s = row.at_s / options_.speed;
  request.prompt.tokens = row.input_tokens;
  request.output_tokens = row.output_tokens;
  if (options_.max_input > 0)
    request.prompt.tokens = std::min(row.input_tokens, options_.max_input);
  if (options_.max_output > 0)
    request.output_tokens = std::min(row.output_tokens, options_.max_output);
  if (request.prompt.tokens < row.input_tokens || request.output_tokens < row.output_tokens)
    ++clipped_;
  if (options_.mode == Mode::kPrefill) request.output_tokens = 1;
  if (options_.mode == Mode::kDecode) request.prompt.tokens = options_.input_range().low;
  request.prompt.unique = index;
  request.prompt.hash_ids = std::move(row.hash_ids);  // Each row is sent once.
  return request;
}

}  // namespace tandem::bench

#include "simulator/cluster.h"

#include <algorithm>

#include "simulator/simulation.h"

namespace tandem::simulator {

ClusterResult simulate(const ClusterOptions& options, std::span<const SimRequest> requests) {
  return Simulation(options, requests).run();
}

// The first token of each attempt came from a prompt, the others from the steps of `stretches`.
std::vector<double> Simulation::token_times(const std::vector<Stretch>& stretches,
                                            const Life& of) const {
  std::vector<double> times{of.first_s};
  times.insert(times.end(), of.resumed_s.begin(), of.resumed_s.end());
  for (const Stretch& stretch : stretches) {
    const auto& ends = stations_[static_cast<size_t>(stretch.worker)].worker.step_ends();
    for (int i = 0; i < stretch.count; ++i)
      times.push_back(ends[static_cast<size_t>(stretch.first_step + i)] + options_.link_delay_s);
  }
  std::sort(times.begin(), times.end());
  return times;
}

ClusterResult Simulation::take_result() {
  result_.requests = static_cast<int64_t>(requests_.size());
  std::vector<std::vector<Stretch>> stretches(options_.token_times ? lives_.size() : 0);
  double prefill_s = 0, decode_s = 0;
  int prefill = 0, decode = 0;
  for (const Station& s : stations_) {
    result_.parked += s.worker.parked_total();
    const bool serves = s.worker.role() == Role::kPrefill;
    (serves ? prefill_s : decode_s) += s.worker.busy_s();
    ++(serves ? prefill : decode);
    for (const Stretch& stretch : s.worker.stretches())
      stretches[static_cast<size_t>(stretch.request)].push_back(stretch);
  }
  const double duration_s = std::max(now_s(), 1e-9);
  result_.prefill_busy = prefill > 0 ? prefill_s / prefill / duration_s : 0;
  result_.decode_busy = decode > 0 ? decode_s / decode / duration_s : 0;
  for (size_t i = 0; i < lives_.size(); ++i) {
    const Life& l = lives_[i];
    const bool served = l.ended && l.error.empty();
    if (l.record >= 0 && served) {
      scheduler::DecisionRecord& record = result_.decisions[static_cast<size_t>(l.record)];
      const int gaps = requests_[i].output_tokens - 1;
      record.outcome = "ok";
      record.ttft_ms = (l.first_s - requests_[i].at_s) * 1e3;
      record.tpot_ms = gaps > 0 ? (l.last_s - l.first_s) * 1e3 / gaps : 0;
      record.output_tokens = requests_[i].output_tokens;
    }
    if (!options_.token_times) continue;
    bench::RequestRecord out;
    out.index = i;
    out.due_s = out.start_s = requests_[i].at_s;
    out.input_tokens = requests_[i].prompt_tokens;
    out.output_planned = requests_[i].output_tokens;
    out.output_tokens = l.emitted;
    out.counted_by_server = true;
    out.ok = served;
    out.error = served ? "" : l.error.empty() ? "not served" : l.error;
    if (served) out.token_times_s = token_times(stretches[i], l);
    result_.records.requests.push_back(std::move(out));
  }
  result_.records.duration_s = duration_s;
  return std::move(result_);
}

}  // namespace tandem::simulator

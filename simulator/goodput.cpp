#include "simulator/goodput.h"

#include <cmath>

namespace tandem::simulator {
namespace {

constexpr double kStride = 1.35;  // Between two guesses until one holds and one fails
constexpr int kRunsMax = 40;

}  // namespace

Goodput find_goodput(const ClusterOptions& options, const std::vector<bench::TraceRow>& rows,
                     const GoodputQuestion& question) {
  ClusterOptions lean = options;
  lean.token_times = lean.decisions = false;
  Goodput best;
  const auto holds = [&](double scale) {
    const std::vector<SimRequest> requests =
        cut_trace(rows, {.scale = scale, .window_s = question.window_s, .seed = question.seed});
    const auto count = static_cast<double>(requests.size());
    lean.misses_max = static_cast<int64_t>(std::floor((1 - question.attainment) * count + 1e-9));
    const ClusterResult result = simulate(lean, requests);
    ++best.runs;
    if (result.gave_up || result.attainment() < question.attainment - 1e-9) return false;
    best.scale = scale;
    best.attainment = result.attainment();
    const double span_s = trace_span_s(rows);
    const double window_s = question.window_s > 0 ? std::min(question.window_s, span_s) : span_s;
    best.requests_per_s = count / (window_s / scale);
    return true;
  };
  double good = 0, bad = 0;
  for (double scale = question.start_scale; best.runs < kRunsMax;) {
    (holds(scale) ? good : bad) = scale;
    if (good > 0 && bad > 0) {
      if (bad / good <= question.precision) break;
      scale = std::sqrt(good * bad);
    } else {
      scale *= good > 0 ? kStride : 1 / kStride;
    }
  }
  best.requests_per_s_per_worker =
      best.requests_per_s / static_cast<double>(std::max<size_t>(1, options.workers.size()));
  return best;
}

}  // namespace tandem::simulator

// How many requests per second workers of each role carry within the targets, for a shape of load.
// Formulas: docs/scheduling.md, "Roles". Role control, recommendations and the planner share them.
// Pure functions.
#pragma once

#include "scheduler/cost_model.h"

namespace tandem::scheduler {

// Of a request, on average.
struct LoadShape {
  double prompt_tokens = 0;
  double uncached_tokens = 0;
  double prefill_ms = 0;  // Of the uncached part
  double prefill_ms_p90 = 0;
  double prefill_cv2 = 0;  // Squared coefficient of variation
  double output_tokens = 0;
  double arrival_cv2 = 1;  // 1: Poisson
};

struct Targets {
  double ttft_ms = 2000;
  double tpot_ms = 80;
  double attainment = 0.9;  // The part of the requests that shall meet the time to first token
};

struct DecodePoint {
  double batch = 1;
  double step_ms = 0;
  double per_second = 0;  // Requests
  bool possible = true;   // False: a single sequence misses the target already
};

// What bounds a decode worker: the time per token, the memory, or the slots (0: no limit).
DecodePoint decode_point(const CostParameters& costs, const LoadShape& shape,
                         const Targets& targets, double slots);
// Requests per second of `workers` prefill workers together: queueing must leave room for the TTFT.
double prefill_per_second(const LoadShape& shape, const Targets& targets, double workers);
// The same of `workers` coupled ones, whose chunks follow from the time per token.
double coupled_per_second(const CostParameters& costs, const LoadShape& shape,
                          const Targets& targets, double slots, double workers);

}  // namespace tandem::scheduler

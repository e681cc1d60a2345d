#include "simulator/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_set>

#include "bench/statistics.h"
#include "simulator/profile_file.h"

namespace tandem::simulator {
namespace {

using Rows = std::vector<bench::TraceRow>;

Status bad(std::string why) { return Status(ErrorCode::kInvalidArgument, std::move(why)); }

// A request alone on idle workers, with whatever earlier prompts left in an endless cache.
struct Alone {
  std::vector<double> prefill_ms;
  std::vector<double> step_ms;
  double prefill_s = 0;  // Sums over all requests
  double decode_s = 0;   // At the best batch there is
};

Alone alone(const Rows& rows, const scheduler::CostParameters& costs) {
  Alone out;
  std::unordered_set<uint64_t> seen;
  for (const bench::TraceRow& row : rows) {
    size_t hits = 0;
    while (hits < row.hash_ids.size() && seen.contains(row.hash_ids[hits])) ++hits;
    seen.insert(row.hash_ids.begin(), row.hash_ids.end());
    const double cached =
        std::min<double>(static_cast<double>(hits) * kTraceBlockTokens, row.input_tokens - 1);
    out.prefill_ms.push_back(costs.prefill_ms(cached, row.input_tokens - cached));
    const double context = row.input_tokens + row.output_tokens / 2.0;
    // One token costs no time between tokens.
    out.step_ms.push_back(row.output_tokens > 1 ? costs.decode_ms(1, context) : 0);
    out.prefill_s += out.prefill_ms.back() / 1e3;
    out.decode_s += row.output_tokens *
                    (costs.decode.per_sequence_ms + costs.decode.per_context_us * context / 1e3) /
                    1e3;
  }
  return out;
}

Status possible(const Settings& settings, const Rows& rows, const scheduler::CostParameters& costs,
                const Alone& of) {
  const double percent = 100 * settings.attainment;
  const auto check = [&](const char* limit, double limit_ms,
                         const std::vector<double>& values) -> Status {
    const double least = bench::Samples(values).percentile(percent);
    if (least <= limit_ms) return {};
    return bad(fmt::format(
        "impossible: {} {:g} ms for {:g}% of the requests; even alone on idle workers of this "
        "profile they need up to {:.1f} ms, {:.1f} ms ({:.0f}%) more than the limit",
        limit, limit_ms, percent, least, least - limit_ms, 100 * (least / limit_ms - 1)));
  };
  for (const bench::TraceRow& row : rows)
    if (row.input_tokens + row.output_tokens > costs.kv_tokens_capacity)
      return bad(
          fmt::format("impossible: a request of {} + {} tokens, a worker's KV memory holds {}",
                      row.input_tokens, row.output_tokens, costs.kv_tokens_capacity));
  TANDEM_RETURN_IF_ERROR(check("TTFT", settings.ttft_ms, of.prefill_ms));
  return check("TPOT", settings.tpot_ms, of.step_ms);
}

class Search {
 public:
  Search(const Settings& settings, const Rows& rows, int workers_max)
      : settings_(settings), workers_max_(workers_max) {
    requests_ = cut_trace(
        rows, {.scale = settings.rate_scale, .window_s = settings.window_s, .seed = settings.seed});
    if (settings_.policy.empty()) settings_.policy = "slack";  // What the router does
  }

  // Simulated once each.
  const PlanCandidate& candidate(int prefill, int decode, int coupled) {
    for (const PlanCandidate& known : tried_)
      if (known.prefill == prefill && known.decode == decode && known.coupled == coupled)
        return known;
    PlanCandidate made{.prefill = prefill, .decode = decode, .coupled = coupled};
    run(made, true);
    tried_.push_back(made);
    return tried_.back();
  }

  // The full figures, also of one that fails.
  void complete(PlanCandidate& candidate) {
    if (!candidate.holds) run(candidate, false);
  }

  // A split of `workers` that holds, near `share` for prefill.
  std::optional<PlanCandidate> split_of(int workers, double share) {
    if (workers < 2) return std::nullopt;
    const int middle = std::clamp(static_cast<int>(std::lround(workers * share)), 1, workers - 1);
    for (const int offset : {0, 1, -1, 2, -2}) {
      const int prefill = middle + offset;
      if (prefill < 1 || prefill >= workers) continue;
      const PlanCandidate found = candidate(prefill, workers - prefill, 0);
      if (found.holds) return found;
    }
    return std::nullopt;
  }

  // The least number from `least` to the maximum for which `holds`; none: not even the maximum.
  template <class Holds>
  std::optional<int> least(int least, Holds holds) {
    int good = std::min(std::max(1, least), workers_max_), bad_count = least - 1;
    while (!holds(good)) {
      bad_count = good;
      if (good == workers_max_) return std::nullopt;
      good = std::min(workers_max_, good * 2);
    }
    while (good - bad_count > 1) {
      const int middle = bad_count + (good - bad_count) / 2;
      (holds(middle) ? good : bad_count) = middle;
    }
    return good;
  }

  const std::vector<SimRequest>& requests() const { return requests_; }
  int simulations() const { return simulations_; }
  const Status& failure() const { return failure_; }

 private:
  void run(PlanCandidate& candidate, bool may_give_up) {
    Settings settings = settings_;
    settings.workers = candidate.workers();
    settings.split = candidate.coupled > 0
                         ? "coupled"
                         : fmt::format("{}:{}", candidate.prefill, candidate.decode);
    auto options = make_cluster(settings);
    if (!options.ok()) {
      failure_ = options.status();
      return;
    }
    const auto count = static_cast<double>(requests_.size());
    if (may_give_up)
      options->misses_max =
          static_cast<int64_t>(std::floor((1 - settings.attainment) * count + 1e-9));
    const ClusterResult result = simulate(*options, requests_);
    ++simulations_;
    candidate.attainment = result.attainment();
    candidate.within_ttft = static_cast<double>(result.within_ttft) / count;
    candidate.within_tpot = static_cast<double>(result.within_tpot) / count;
    candidate.prefill_busy = result.prefill_busy;
    candidate.decode_busy = result.decode_busy;
    candidate.holds = !result.gave_up && candidate.attainment >= settings.attainment - 1e-9;
  }

  Settings settings_;
  const int workers_max_;
  std::vector<SimRequest> requests_;
  std::vector<PlanCandidate> tried_;
  int simulations_ = 0;
  Status failure_;
};

std::string why_lost(const PlanCandidate& lost, const Plan& plan, const Settings& settings) {
  if (!lost.holds) {
    const bool ttft = lost.within_ttft < lost.within_tpot;
    return fmt::format("only {:.1f}% within both limits: {} {:g} ms is met by {:.1f}%",
                       100 * lost.attainment, ttft ? "TTFT" : "TPOT",
                       ttft ? settings.ttft_ms : settings.tpot_ms,
                       100 * (ttft ? lost.within_ttft : lost.within_tpot));
  }
  const int more = lost.workers() - plan.best.workers();
  if (more > 0) return fmt::format("holds, with {} more worker{}", more, more > 1 ? "s" : "");
  return fmt::format("holds at the same cost, {:.1f}% within both limits", 100 * lost.attainment);
}

void add_other(Plan& plan, Search& search, const Settings& settings, PlanCandidate candidate) {
  const auto same = [&](const PlanCandidate& other) { return other.text() == candidate.text(); };
  if (same(plan.best) || std::any_of(plan.others.begin(), plan.others.end(), same)) return;
  search.complete(candidate);
  candidate.why = why_lost(candidate, plan, settings);
  plan.others.push_back(std::move(candidate));
}

void add_others(Plan& plan, Search& search, const Settings& settings,
                const std::optional<PlanCandidate>& split, std::optional<int> coupled) {
  if (split) add_other(plan, search, settings, *split);
  if (coupled) add_other(plan, search, settings, search.candidate(0, 0, *coupled));
  const PlanCandidate& best = plan.best;
  if (best.coupled > 1) add_other(plan, search, settings, search.candidate(0, 0, best.coupled - 1));
  if (const PlanCandidate* near = split ? &*split : nullptr) {
    if (near->prefill > 1)
      add_other(plan, search, settings, search.candidate(near->prefill - 1, near->decode, 0));
    if (near->decode > 1)
      add_other(plan, search, settings, search.candidate(near->prefill, near->decode - 1, 0));
    if (near->prefill > 1)
      add_other(plan, search, settings, search.candidate(near->prefill - 1, near->decode + 1, 0));
    if (near->decode > 1)
      add_other(plan, search, settings, search.candidate(near->prefill + 1, near->decode - 1, 0));
  }
  std::stable_sort(plan.others.begin(), plan.others.end(),
                   [](const PlanCandidate& a, const PlanCandidate& b) {
                     return a.holds != b.holds ? a.holds : a.workers() < b.workers();
                   });
}

}  // namespace

std::string PlanCandidate::text() const {
  return coupled > 0 ? fmt::format("{} coupled", coupled)
                     : fmt::format("{} prefill + {} decode", prefill, decode);
}

Result<Plan> make_plan(const Settings& settings, const Rows& rows, int workers_max) {
  auto profile = load_profile(settings.profile);
  if (!profile.ok()) return profile.status();
  const Alone of = alone(rows, profile->costs);
  TANDEM_RETURN_IF_ERROR(possible(settings, rows, profile->costs, of));

  Plan plan;
  plan.profile = *profile;
  plan.attainment_wanted = settings.attainment;
  plan.requests_per_s = static_cast<double>(rows.size()) / trace_span_s(rows) * settings.rate_scale;
  for (const bench::TraceRow& row : rows)
    plan.context = std::max(plan.context, row.input_tokens + row.output_tokens);

  Search search(settings, rows, workers_max);
  // Fewer cannot be: the engines would be busy all the time.
  const double span_s = trace_span_s(rows) / settings.rate_scale;
  const double work = (of.prefill_s + of.decode_s) / span_s;
  const int least = std::max(1, static_cast<int>(work * settings.attainment * 0.8));
  const auto coupled =
      search.least(least, [&](int count) { return search.candidate(0, 0, count).holds; });
  if (!search.failure().ok()) return search.failure();
  const double share = of.prefill_s / std::max(1e-9, of.prefill_s + of.decode_s);
  std::optional<PlanCandidate> split;
  const auto pair = search.least(
      std::max(2, least), [&](int count) { return search.split_of(count, share).has_value(); });
  if (pair) split = search.split_of(*pair, share);
  if (!coupled && !split)
    return bad(fmt::format(
        "{} workers do not meet the limits for {:g}% of the requests; --workers-max allows more",
        workers_max, 100 * settings.attainment));
  const bool separate = split && (!coupled || split->workers() <= *coupled);
  plan.best = separate ? *split : search.candidate(0, 0, *coupled);
  // At the same cost the one that holds for more requests.
  if (split && coupled && split->workers() == *coupled)
    if (const PlanCandidate& other = search.candidate(0, 0, *coupled);
        other.attainment > plan.best.attainment)
      plan.best = other;
  add_others(plan, search, settings, split, coupled);
  plan.simulations = search.simulations();
  return plan;
}

}  // namespace tandem::simulator

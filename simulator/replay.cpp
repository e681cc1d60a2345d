#include "simulator/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/json_report.h"

namespace tandem::simulator {
namespace {

using scheduler::DecisionRecord;
using scheduler::WorkerState;

constexpr double kStepShare = 0.9;  // Part of the TPOT limit that a mixed step may take
constexpr size_t kWorstShown = 5;

struct Choice {
  std::string path;
  std::string prefill;
  std::string decode;
  double ttft_ms = 0;
  bool fits = true;  // The decode worker has room, and keeps the time per token

  std::string text() const {
    const bool local = path == "local";
    return path + " " + (local || prefill.empty() ? decode : prefill);
  }
};

class Estimator {
 public:
  Estimator(const DecisionRecord& record, const scheduler::CostParameters& costs)
      : record_(record), costs_(costs) {}

  // Every pair and every local way.
  std::vector<Choice> all() const {
    std::vector<Choice> out;
    for (const WorkerState& d : record_.candidates) {
      if (!d.accepting || !serves_decode(d.role)) continue;
      out.push_back({"local", "", d.name, local_ms(d), fits(d)});
      for (const WorkerState& p : record_.candidates)
        if (p.accepting && serves_prefill(p.role))
          out.push_back({"remote", p.name, d.name, prefill_ms(p), fits(d)});
    }
    return out;
  }
  Choice of(const std::string& path, const std::string& prefill, const std::string& decode) const {
    const WorkerState* p = find(prefill);
    const WorkerState* d = find(decode);
    Choice choice{path, prefill, decode, -1, d == nullptr || fits(*d)};
    if (p != nullptr) choice.ttft_ms = prefill_ms(*p);
    if (p == nullptr && d != nullptr) choice.ttft_ms = local_ms(*d);
    return choice;
  }

 private:
  const WorkerState* find(const std::string& name) const {
    for (const WorkerState& state : record_.candidates)
      if (state.name == name) return &state;
    return nullptr;
  }
  // What was known to be cached was known of the worker that was chosen.
  double tokens(const WorkerState& state) const {
    const bool chosen = state.name == (record_.prefill.empty() ? record_.decode : record_.prefill);
    return std::max(1, record_.prompt_tokens - (chosen ? record_.cached_tokens : 0)) +
           static_cast<double>(state.prefill_backlog_tokens);
  }
  double prefill_ms(const WorkerState& p) const {
    return p.prefill_us_per_token > 0 ? tokens(p) * p.prefill_us_per_token / 1e3
                                      : costs_.prefill_ms(0, tokens(p));
  }
  double step_ms(const WorkerState& d) const {
    const int running = d.slots - d.slots_free;
    if (running <= 0) return 0;
    return d.decode_step_ms > 0 ? d.decode_step_ms
                                : costs_.decode_ms(running, static_cast<double>(d.kv_tokens_used));
  }
  // Beside decoding, a prompt gets what the steps leave of the limit.
  double local_ms(const WorkerState& d) const {
    const double step = step_ms(d);
    if (step <= 0) return prefill_ms(d);
    const double us =
        d.prefill_us_per_token > 0 ? d.prefill_us_per_token : costs_.prefill_per_token_us;
    const double budget_ms = kStepShare * record_.tpot_slo_ms;
    const double per_step =
        std::max(64.0, (budget_ms - step) * 1e3 / us - costs_.chunk_overhead_tokens);
    return std::ceil(tokens(d) / per_step) * std::max(budget_ms, step);
  }
  bool fits(const WorkerState& d) const {
    return d.slots_free >= record_.choices &&
           d.kv_tokens_used + d.kv_tokens_reserved + record_.prompt_tokens <=
               d.kv_tokens_capacity &&
           (record_.tpot_slo_ms <= 0 || step_ms(d) <= record_.tpot_slo_ms);
  }

  const DecisionRecord& record_;
  const scheduler::CostParameters& costs_;
};

scheduler::Decision decide_now(const DecisionRecord& record, const Config& config) {
  const auto scheduler = scheduler::make_scheduler(config);
  for (size_t i = 0; i < record.candidates.size(); ++i)
    scheduler->worker_joined(static_cast<int>(i), record.candidates[i]);
  const auto ms = [](double value) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(value));
  };
  scheduler::Request request;
  request.prompt_tokens = record.prompt_tokens;
  request.cached_tokens = record.cached_tokens;
  request.max_tokens = record.max_tokens;
  request.choices = record.choices;
  request.priority = record.priority;
  request.ttft_slo = ms(record.ttft_slo_ms);
  request.tpot_slo = ms(record.tpot_slo_ms);
  request.prefill_only = record.max_tokens == 1;
  const TimePoint now(ms(record.at_ms));
  scheduler->submit(1, request, now);
  const auto decisions = scheduler->poll(now);
  return decisions.empty() ? scheduler::Decision{} : decisions.front();
}

JudgedDecision judge_one(const DecisionRecord& record, const ClusterOptions& options) {
  const Estimator estimate(record, options.workers[0].costs);
  JudgedDecision out;
  const std::vector<Choice> all = estimate.all();
  const auto better = [](const Choice& a, const Choice& b) {
    return a.fits != b.fits ? a.fits : a.ttft_ms < b.ttft_ms;
  };
  const auto best = std::min_element(all.begin(), all.end(), better);
  const bool refused = record.path == "refused";
  const Choice chosen = estimate.of(record.path, record.prefill, record.decode);
  out.chosen_ms = refused ? -1 : chosen.ttft_ms;
  if (best == all.end()) return out;
  out.best_ms = best->ttft_ms;
  out.best = best->text();
  const auto regret = [&](const Choice& of) {
    return of.ttft_ms < 0 ? 0.0 : std::max(0.0, of.ttft_ms - best->ttft_ms);
  };
  if (!refused) out.regret_ms = regret(chosen);
  const scheduler::Decision now = decide_now(record, options.config);
  const auto name = [&](int worker) {
    return worker < 0 ? "" : record.candidates[static_cast<size_t>(worker)].name;
  };
  const bool decided = now.ticket == 1;
  const Choice again =
      estimate.of(std::string(path_name(now.path)), name(now.prefill), name(now.decode));
  out.now = !decided ? "wait" : now.path == scheduler::Path::kRefuse ? "refused" : again.text();
  if (decided && now.path != scheduler::Path::kRefuse) out.now_regret_ms = regret(again);
  out.same = decided && record.path == again.path && record.prefill == again.prefill &&
             record.decode == again.decode;
  return out;
}

std::string table(const Judgement& j, const std::vector<DecisionRecord>& log) {
  std::string text =
      fmt::format("\n  {} decisions, {:.1f}% refused\n", log.size(), 100 * j.refused);
  const auto row = [&](const char* name, const bench::Samples& samples, const char* unit) {
    text += fmt::format("  {:<34}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}  {}\n", name, samples.mean(),
                        samples.median(), samples.percentile(90), samples.max(), unit);
  };
  text += fmt::format("\n  {:<34}{:>10}{:>10}{:>10}{:>10}\n", "", "mean", "median", "p90", "max");
  row("regret of what was chosen", j.regret_ms, "ms");
  row("regret of what is chosen now", j.now_regret_ms, "ms");
  row("first token: |predicted / seen - 1|", j.error, "%");
  text +=
      fmt::format("\n  faster than the predicted bound: {:.1f}%; decided the same now: {:.1f}%\n",
                  100 * j.within_bound, 100 * j.same);
  std::vector<size_t> order(log.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return j.decisions[a].regret_ms > j.decisions[b].regret_ms;
  });
  text += "\n  Most regretted\n";
  for (size_t i = 0; i < std::min(kWorstShown, order.size()); ++i) {
    const DecisionRecord& record = log[order[i]];
    const JudgedDecision& judged = j.decisions[order[i]];
    if (judged.regret_ms <= 0) break;
    text += fmt::format("  {:>8.0f} ms  request {} ({} tokens): {} {}{}{}, best {}, now {}\n",
                        judged.regret_ms, record.request, record.prompt_tokens, record.path,
                        record.prefill, record.prefill.empty() ? "" : " ", record.decode,
                        judged.best, judged.now);
  }
  return text + "\n";
}

}  // namespace

Judgement judge(const std::vector<DecisionRecord>& log, const ClusterOptions& options) {
  Judgement out;
  std::vector<double> regret, now_regret, error;
  size_t bounded = 0, within = 0, same = 0, refused = 0;
  for (const DecisionRecord& record : log) {
    out.decisions.push_back(judge_one(record, options));
    const JudgedDecision& judged = out.decisions.back();
    same += judged.same ? 1 : 0;
    refused += record.path == "refused" ? 1 : 0;
    if (record.path != "refused") regret.push_back(judged.regret_ms);
    if (judged.now != "wait" && judged.now != "refused") now_regret.push_back(judged.now_regret_ms);
    if (record.ttft_ms <= 0 || record.predicted_ttft_ms <= 0) continue;
    error.push_back(100 * std::abs(record.predicted_ttft_ms / record.ttft_ms - 1));
    if (record.predicted_ttft_bound_ms <= 0) continue;
    ++bounded;
    within += record.ttft_ms <= record.predicted_ttft_bound_ms ? 1 : 0;
  }
  const auto part = [](size_t count, size_t of) {
    return of > 0 ? static_cast<double>(count) / static_cast<double>(of) : 0;
  };
  out.regret_ms = bench::Samples(std::move(regret));
  out.now_regret_ms = bench::Samples(std::move(now_regret));
  out.error = bench::Samples(std::move(error));
  out.within_bound = part(within, bounded);
  out.same = part(same, log.size());
  out.refused = part(refused, log.size());
  return out;
}

Status replay_decisions(const Settings& settings) {
  const auto options = make_cluster(settings);
  if (!options.ok()) return options.status();
  std::ifstream in(settings.replay_file);
  if (!in) return Status(ErrorCode::kNotFound, settings.replay_file + ": cannot be read");
  const auto log = scheduler::read_decisions(in, settings.replay_file);
  if (!log.ok()) return log.status();
  const Judgement judgement = judge(*log, *options);
  const bool to_stdout = settings.load.json_file == "-";
  fmt::print(to_stdout ? stderr : stdout, "{}", table(judgement, *log));
  if (settings.load.json_file.empty()) return {};
  nlohmann::ordered_json out{{"decisions", log->size()},
                             {"refused", judgement.refused},
                             {"mean_regret_ms", judgement.regret_ms.mean()},
                             {"p90_regret_ms", judgement.regret_ms.percentile(90)},
                             {"mean_now_regret_ms", judgement.now_regret_ms.mean()},
                             {"median_prediction_error_percent", judgement.error.median()},
                             {"within_bound", judgement.within_bound},
                             {"same", judgement.same}};
  return bench::write_text(settings.load.json_file, out.dump(2) + "\n");
}

}  // namespace tandem::simulator

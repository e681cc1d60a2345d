// What a plan looks like: the table, the JSON and the configuration.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "simulator/planner.h"

namespace tandem::simulator {
namespace {

using nlohmann::ordered_json;

// A real cluster moves the model's KV; the sim engine's cache is kept small, since its bytes travel
// over one machine's loopback.
constexpr int kConfigKvBytesPerToken = 512;
constexpr int kConfigLayersMax = 16;
constexpr int kConfigContextMin = 4096;

std::string row(const PlanCandidate& c) {
  return fmt::format("  {:<26}{:>8}{:>10.1f}%{:>9.1f}%{:>9.1f}%", c.text(), c.workers(),
                     100 * c.attainment, 100 * c.within_ttft, 100 * c.within_tpot);
}

ordered_json json_of(const PlanCandidate& c) {
  return {{"prefill", c.prefill},
          {"decode", c.decode},
          {"coupled", c.coupled},
          {"workers", c.workers()},
          {"within_both", c.attainment},
          {"within_ttft", c.within_ttft},
          {"within_tpot", c.within_tpot},
          {"prefill_busy", c.prefill_busy},
          {"decode_busy", c.decode_busy},
          {"holds", c.holds},
          {"why", c.why}};
}

std::string pool(const char* name, int replicas, int slots) {
  if (replicas == 0) return "";
  return fmt::format("  {}:\n    replicas: {}\n    slots: {}\n", name, replicas, slots);
}

}  // namespace

std::string plan_table(const Settings& settings, const Plan& plan) {
  std::string text = fmt::format(
      "\n  {} at {:.2f} requests/s; {:g}% of them within TTFT {:g} ms and TPOT {:g} ms\n"
      "  profile {} ({} GPU{} per worker; {})\n\n",
      settings.load.trace.substr(settings.load.trace.rfind('/') + 1), plan.requests_per_s,
      100 * plan.attainment_wanted, settings.ttft_ms, settings.tpot_ms, plan.profile.name,
      plan.profile.costs.gpus, plan.profile.costs.gpus > 1 ? "s" : "", plan.profile.source);
  text += fmt::format("  {:<26}{:>8}{:>11}{:>10}{:>10}\n", "", "workers", "both", "TTFT", "TPOT");
  text += row(plan.best) + "  <- the cheapest that holds\n";
  for (const PlanCandidate& other : plan.others) text += row(other) + "  " + other.why + "\n";
  const int gpus = plan.best.workers() * plan.profile.costs.gpus;
  text += fmt::format("\n  {} ({} GPU{}), found with {} simulations.\n", plan.best.text(), gpus,
                      gpus > 1 ? "s" : "", plan.simulations);
  return text;
}

std::string plan_json(const Settings& settings, const Plan& plan) {
  ordered_json out{{"trace", settings.load.trace},
                   {"requests_per_s", plan.requests_per_s},
                   {"profile", plan.profile.name},
                   {"profile_source", plan.profile.source},
                   {"ttft_ms", settings.ttft_ms},
                   {"tpot_ms", settings.tpot_ms},
                   {"attainment", plan.attainment_wanted},
                   {"gpus", plan.best.workers() * plan.profile.costs.gpus},
                   {"best", json_of(plan.best)},
                   {"others", ordered_json::array()},
                   {"simulations", plan.simulations}};
  for (const PlanCandidate& other : plan.others) out["others"].push_back(json_of(other));
  return out.dump(2) + "\n";
}

std::string plan_config(const Settings& settings, const Plan& plan) {
  const scheduler::CostParameters& costs = plan.profile.costs;
  const int slots = std::min(settings.decode_slots, 1024);
  const WorkerSpec defaults;
  std::string text = fmt::format(
      "# {} for {:.2f} requests/s, {:g}% of them within TTFT {:g} ms and TPOT {:g} ms.\n"
      "# The workers are simulated (engine: sim) and take the time of {}:\n"
      "# for real ones set model.engine, model.path and remove the section sim.\n",
      plan.best.text(), plan.requests_per_s, 100 * plan.attainment_wanted, settings.ttft_ms,
      settings.tpot_ms, plan.profile.name);
  text += fmt::format("model:\n  engine: sim\n  name: simulated\n  context: {}\n",
                      std::max(kConfigContextMin, plan.context));
  text += "pools:\n" + pool("prefill", plan.best.prefill, defaults.prefill_slots) +
          pool("decode", plan.best.decode, slots) + pool("coupled", plan.best.coupled, slots);
  text += fmt::format("slo:\n  ttft_ms: {:.0f}\n  tpot_ms: {:.0f}\n", settings.ttft_ms,
                      settings.tpot_ms);
  text += fmt::format(
      "sim:\n  prefill_base_ms: {}\n  prefill_per_token_us: {}\n  prefill_per_token2_us: {}\n"
      "  decode_base_ms: {}\n  decode_per_sequence_ms: {}\n  decode_per_context_us: {}\n",
      costs.prefill_base_ms, costs.prefill_per_token_us, costs.prefill_per_token2_us,
      costs.decode.base_ms, costs.decode.per_sequence_ms, costs.decode.per_context_us);
  text += fmt::format(
      "  layers: {}\n  kv_bytes_per_token: {}  # {} in the model: here the bytes share one "
      "memory\n",
      std::min(costs.layers, kConfigLayersMax), kConfigKvBytesPerToken, costs.kv_bytes_per_token);
  text +=
      "transfer:\n  landing_bytes: 4MiB\n  segment_bytes: 128KiB\n  unit_bytes_min: 16KiB\n"
      "router:\n  listen: 127.0.0.1:8080\n  admin: 127.0.0.1:8081\n";
  return text;
}

}  // namespace tandem::simulator

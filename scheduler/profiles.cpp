#include "scheduler/profiles.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::scheduler {
namespace {

constexpr char kRoofline[] =
    "roofline: 68% of peak FLOP/s in linear layers, 50% in attention, 72% of bandwidth (62% with 8 "
    "GPUs)";
constexpr char kDistServe[] = "DistServe (OSDI 2024), the constants of its simulator";
constexpr char kSplitwise[] =
    "Splitwise (ISCA 2024), fit of its published measurements (2023 kernels)";

// The roofline of docs/scheduling.md. Every model's prefill has a fixed 5 ms (launches), every
// decoding sequence 0.04 ms (sampling).
struct RooflineRow {
  const char* name;
  double a1_us, a2_us, w_ms, gamma_ns;
  int kv_kib;
  int64_t kv_tokens;
  int layers, gpus;
};
constexpr double kRooflinePrefillBaseMs = 5;
constexpr double kRooflinePerSequenceMs = 0.04;
constexpr RooflineRow kRooflineRows[] = {
    {"llama-3-8b-a100", 65.8, 1.68e-3, 12.2, 86, 128, 412000, 32, 1},
    {"llama-3-8b-h100", 20.8, 5.30e-4, 8.2, 52, 128, 412000, 32, 1},
    {"qwen2.5-14b-a100", 124.5, 3.15e-3, 21.1, 129, 192, 206000, 48, 1},
    {"qwen2.5-14b-h100", 39.3, 9.94e-4, 13.6, 78, 192, 206000, 48, 1},
    {"qwen2.5-14b-h100-tp2", 22.5, 4.97e-4, 10.4, 39, 192, 562000, 48, 2},
    {"llama-3-70b-a100-tp8", 93.8, 1.05e-3, 20.1, 27, 320, 1278000, 80, 8},
    {"llama-3-70b-h100-tp4", 58.4, 6.63e-4, 20.7, 33, 320, 424000, 80, 4},
    {"llama-3-70b-h100-tp8", 32.9, 3.31e-4, 14.7, 16, 320, 1278000, 80, 8},
    {"qwen2.5-7b-h200", 19.4, 4.06e-4, 6.1, 16, 56, 1912000, 28, 1},
    {"qwen2.5-0.5b-h200", 1.1, 8.7e-5, 2.3, 3.4, 12, 10084000, 24, 1},
};

// Fits of published measurements: milliseconds and tokens, as published.
struct MeasuredRow {
  const char* name;
  const char* source;
  double a0_ms, a1_ms, a2_ms;
  DecodeCosts decode;
  int large_batch;
  DecodeCosts decode_large;
  int64_t kv_bytes, kv_tokens;
  int layers, gpus;
};
// KV per token: 2 x layers x KV heads x head size x 2 bytes. Capacities: 90% of the memory less the
// weights.
constexpr MeasuredRow kMeasuredRows[] = {
    {"opt-13b-a100",
     kDistServe,
     18.1,
     .1019,
     7.12e-6,
     {19.9, .0385, .627},
     95,
     {7.17, .158, .580},
     819200,
     56000,
     40,
     1},
    {"opt-66b-a100-tp4",
     kDistServe,
     29.4,
     .1514,
     8.32e-6,
     {30.8, .0633, .452},
     95,
     {27.5, .125, .405},
     2359296,
     66000,
     64,
     4},
    {"llama-2-70b-h100-tp8",
     kSplitwise,
     32.9,
     .0521,
     5.55e-6,
     {29.6, .198, .22},
     0,
     {},
     327680,
     1330000,
     80,
     8},
    {"llama-2-70b-h100-tp4",
     kSplitwise,
     28.3,
     .0817,
     3.96e-6,
     {28.8, .272, .10},
     0,
     {},
     327680,
     450000,
     80,
     4},
    {"llama-2-70b-a100-tp8",
     kSplitwise,
     34.6,
     .133,
     4.84e-6,
     {43.7, .187, .40},
     0,
     {},
     327680,
     1330000,
     80,
     8},
    {"llama-2-70b-a100-tp4",
     kSplitwise,
     24.1,
     .229,
     0,
     {43.1, .170, .46},
     0,
     {},
     327680,
     450000,
     80,
     4},
};

std::vector<Profile> make_profiles() {
  std::vector<Profile> out;
  for (const RooflineRow& row : kRooflineRows) {
    CostParameters p;
    p.prefill_base_ms = kRooflinePrefillBaseMs;
    p.prefill_per_token_us = row.a1_us;
    p.prefill_per_token2_us = row.a2_us;
    p.decode = {row.w_ms, kRooflinePerSequenceMs, row.gamma_ns / 1e3};
    p.layers = row.layers;
    p.kv_bytes_per_token = row.kv_kib * 1024;
    p.kv_tokens_capacity = row.kv_tokens;
    p.gpus = row.gpus;
    out.push_back({row.name, kRoofline, p});
  }
  for (const MeasuredRow& row : kMeasuredRows) {
    CostParameters p;
    p.prefill_base_ms = row.a0_ms;
    p.prefill_per_token_us = row.a1_ms * 1e3;
    p.prefill_per_token2_us = row.a2_ms * 1e3;
    p.decode = row.decode;
    p.large_batch = row.large_batch;
    p.decode_large = row.decode_large;
    p.chunk_overhead_tokens = 0;  // The fits hold it in their fixed part
    p.layers = row.layers;
    p.kv_bytes_per_token = row.kv_bytes;
    p.kv_tokens_capacity = row.kv_tokens;
    p.gpus = row.gpus;
    out.push_back({row.name, row.source, p});
  }
  return out;
}

const std::vector<Profile>& profiles() {
  static const std::vector<Profile> all = make_profiles();
  return all;
}

}  // namespace

Result<Profile> find_profile(std::string_view name, const SimConfig& sim) {
  if (name == "sim")
    return Profile{"sim", "the configuration's sim section", CostParameters::from(sim)};
  for (const Profile& profile : profiles())
    if (profile.name == name) return profile;
  return Status(ErrorCode::kNotFound, fmt::format("there is no profile \"{}\"; there are: {}", name,
                                                  fmt::join(profile_names(), ", ")));
}

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (const Profile& profile : profiles()) names.push_back(profile.name);
  names.push_back("sim");
  return names;
}

}  // namespace tandem::scheduler

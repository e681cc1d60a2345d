// Proves the time model's formulas against figures computed by hand, that the live model learns
// what a worker does, and that nonsense neither enters it nor passes validate().
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "scheduler/profiles.h"
#include "scheduler/scheduler.h"

namespace tandem::scheduler {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST_CASE("the roofline profiles give the published prompt times") {
  const auto near = [](const char* name, double tokens, double ms) {
    CHECK(find_profile(name)->costs.prefill_ms(0, tokens) == doctest::Approx(ms).epsilon(0.02));
  };
  near("llama-3-8b-a100", 2048, 147);
  near("llama-3-8b-h100", 8192, 211);
  near("qwen2.5-14b-h100", 32768, 2360);
  near("llama-3-70b-h100-tp8", 100000, 6612);
  near("qwen2.5-7b-h200", 2048, 46);
  near("llama-2-70b-h100-tp8", 2048, 163);
}

TEST_CASE("a step's time follows the formulas of prefill, decode and both") {
  CostParameters p;
  p.prefill_base_ms = 5;
  p.prefill_per_token_us = 100;
  p.prefill_per_token2_us = 0.01;
  p.decode = {10, 0.1, 0.5};
  CHECK(p.prefill_ms(1000, 500) == doctest::Approx(5 + 50 + 0.01e-3 * (1500. * 1500 - 1e6)));
  CHECK(p.decode_ms(20, 4000) == doctest::Approx(10 + 2 + 2));
  CHECK(p.decode_ms(200, 0) == doctest::Approx(20 + 20));  // Compute-bound: a1 B > w
  CHECK(p.mixed_ms(0, 400, 20, 4000) == doctest::Approx(42 + 2 + 2 + 1.6 + 12.8));
  CHECK(p.mixed_ms(0, 0, 20, 4000) == p.decode_ms(20, 4000));
  CHECK(p.mixed_ms(0, 400, 0, 0) == p.prefill_ms(0, 400));
}

TEST_CASE("a second regime holds from its batch on") {
  const CostParameters p = find_profile("opt-13b-a100")->costs;
  CHECK(p.decode_ms(94, 10000) == doctest::Approx(19.9 + .0385 * 94 + 6.27));
  CHECK(p.decode_ms(95, 10000) == doctest::Approx(std::max(7.17, .1019 * 95) + .158 * 95 + 5.80));
}

TEST_CASE("every named profile is valid, and an unknown name lists them") {
  for (const std::string& name : profile_names()) CHECK(find_profile(name)->costs.validate().ok());
  const auto none = find_profile("llama-9");
  REQUIRE(!none.ok());
  CHECK(none.status().message().find("qwen2.5-14b-h100") != std::string::npos);
}

TEST_CASE("rates that are zero, negative or no number are named with what is allowed") {
  const auto message = [](auto change) {
    CostParameters p;
    change(p);
    return p.validate().message();
  };
  CHECK(message([](auto& p) { p.prefill_per_token_us = 0; }) ==
        "prefill_per_token_us: found 0; allowed: above 0 to 1000000");
  CHECK(message([](auto& p) { p.decode.base_ms = -1; }) ==
        "decode_base_ms: found -1; allowed: above 0 to 1000000");
  CHECK(message([](auto& p) { p.decode.per_context_us = kNan; }).find("nan") != std::string::npos);
  CHECK(message([](auto& p) { p.prefill_per_token2_us = kInfinity; }).find("inf") !=
        std::string::npos);
  CHECK(message([](auto& p) { p.kv_bytes_per_token = 0; }).find("kv_bytes_per_token") == 0);
  CHECK(message([](auto& p) { p.kv_tokens_capacity = -5; }).find("kv_tokens_capacity") == 0);
  CHECK(message([](auto& p) { p.large_batch = 10; }).find("decode_large_base_ms") == 0);
  CHECK(CostParameters{}.validate().ok());
}

// Steps of a worker that is `factor` times as slow as `costs`.
void feed(CostModel& model, const CostParameters& costs, double factor, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    const int n = 128 << (i % 5), first = 700 * (i % 4), batch = 1 + i % 40;
    const int64_t context = batch * (200 + 90 * (i % 11));
    model.observe(
        {.prompt_first = first, .prompt_tokens = n, .ms = factor * costs.prefill_ms(first, n)});
    model.observe({.sequences = batch,
                   .context_tokens = context,
                   .ms = factor * costs.decode_ms(batch, static_cast<double>(context))});
  }
}

TEST_CASE("the live model learns a worker that is slower than its profile") {
  const CostParameters prior = find_profile("llama-3-8b-a100")->costs;
  CostModel model(prior, true);
  feed(model, prior, 1.3, 300);
  const CostParameters& now = model.parameters();
  CHECK(now.prefill_ms(0, 1000) == doctest::Approx(1.3 * prior.prefill_ms(0, 1000)).epsilon(0.03));
  CHECK(now.decode_ms(20, 9000) == doctest::Approx(1.3 * prior.decode_ms(20, 9000)).epsilon(0.03));
  CHECK(model.prefill_ratio(0.5) == doctest::Approx(1).epsilon(0.05));
}

TEST_CASE("a trusted profile is left by half at most, a probe without limit") {
  const CostParameters prior = find_profile("llama-3-8b-a100")->costs;
  CostModel trusted(prior, true);
  CostModel probe(prior, false);
  feed(trusted, prior, 10, 300);
  feed(probe, prior, 10, 300);
  CHECK(trusted.parameters().prefill_ms(0, 1000) <= 1.5001 * prior.prefill_ms(0, 1000));
  CHECK(trusted.prefill_ratio(0.5) > 5);  // What the clamp hides shows in the residuals
  CHECK(probe.parameters().prefill_ms(0, 1000) ==
        doctest::Approx(10 * prior.prefill_ms(0, 1000)).epsilon(0.05));
}

TEST_CASE("a guess takes a worker's smoothed rates until it has samples") {
  CostModel model(CostParameters{}, false);
  model.hint(250, 40);
  CHECK(model.parameters().prefill_ms(0, 1000) == doctest::Approx(250));
  CHECK(model.parameters().decode_ms(4, 1000) == doctest::Approx(40));
  model.hint(kNan, -3);
  CHECK(model.parameters().prefill_ms(0, 1000) == doctest::Approx(250));
}

TEST_CASE("samples that make no sense are dropped and counted") {
  CostModel model(CostParameters{}, false);
  const double before = model.parameters().prefill_ms(0, 1000);
  for (const double ms : {kNan, kInfinity, -1.0, 0.0, 3'600'001.0})
    model.observe({.prompt_tokens = 100, .ms = ms});
  model.observe({.prompt_tokens = -4, .ms = 10});
  model.observe({.ms = 10});
  CHECK(model.samples_dropped() == 7);
  CHECK(model.samples() == 0);
  CHECK(model.parameters().prefill_ms(0, 1000) == before);
}

TEST_CASE("steady input for a long time leaves the model finite and able to learn") {
  const CostParameters prior = find_profile("llama-3-8b-h100")->costs;
  CostModel model(prior, false);
  for (int i = 0; i < 20000; ++i)
    model.observe({.sequences = 8, .context_tokens = 8000, .ms = prior.decode_ms(8, 8000)});
  CHECK(model.parameters().decode_ms(8, 8000) == doctest::Approx(prior.decode_ms(8, 8000)));
  feed(model, prior, 1, 300);
  CHECK(model.parameters().decode_ms(30, 20000) ==
        doctest::Approx(prior.decode_ms(30, 20000)).epsilon(0.05));
}

TEST_CASE("quantiles are those of the last values") {
  RecentQuantiles q;
  CHECK(q.quantile(0.5, 7) == 7);
  for (int i = 0; i < 1000; ++i) q.add(i);
  q.add(kNan);
  CHECK(q.count() == RecentQuantiles::kWindow);
  CHECK(q.quantile(0, 0) == 1000 - RecentQuantiles::kWindow);
  CHECK(q.quantile(1, 0) == 999);
}

}  // namespace
}  // namespace tandem::scheduler

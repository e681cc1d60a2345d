// Proves what workers of each role carry, and that role control finds the best roles from any
// start, one move at a time, stays there, and keeps the bounds.
#include <doctest/doctest.h>

#include <algorithm>

#include "scheduler/profiles.h"
#include "scheduler/role_control.h"

namespace tandem::scheduler {
namespace {

using namespace std::chrono_literals;

// Made at first use: other files' statics are there by then.
const CostParameters& profile_costs() {
  static const CostParameters costs = find_profile("qwen2.5-14b-h100")->costs;
  return costs;
}

struct Fleet {
  RoleControl control;
  std::vector<RoleWorker> workers;
  TimePoint now{Duration(1h)};
  int moves = 0;
  int moves_in_progress_max = 0;
  std::vector<int> moved;

  Fleet(const RatioConfig& ratio, const Targets& targets, int prefill, int decode, int coupled = 0)
      : control(ratio, targets) {
    for (int i = 0; i < prefill; ++i) add(Role::kPrefill);
    for (int i = 0; i < decode; ++i) add(Role::kDecode);
    for (int i = 0; i < coupled; ++i) add(Role::kCoupled);
  }
  void add(Role role) { workers.push_back({static_cast<int>(workers.size()), role, true, 0}); }
  Roles roles() const {
    const auto count = [&](Role role) {
      return static_cast<int>(std::ranges::count(workers, role, &RoleWorker::role));
    };
    return {count(Role::kPrefill), count(Role::kDecode), count(Role::kCoupled)};
  }
  RoleView view() const { return {.workers = workers, .costs = profile_costs(), .slots = 256}; }
  // Requests of one shape at `rate` for `seconds`; moves take two seconds.
  void run(int seconds, double rate, int prompt, int output) {
    for (int s = 0; s < seconds; ++s) {
      for (int i = 0; i < static_cast<int>(rate); ++i) {
        now += Duration(1s) / static_cast<int>(rate);
        control.load().arrived({.prompt_tokens = prompt * 1.0,
                                .uncached_tokens = prompt * 1.0,
                                .prefill_ms = profile_costs().prefill_ms(0, prompt),
                                .predicted_output_tokens = output * 1.0},
                               now);
        control.load().ended(output);
      }
      control.load().decoding(rate * output * 0.02, 20, now);
      if (switching_ >= 0 && now >= switched_at_) {
        workers[static_cast<size_t>(switching_)].role = to_;
        workers[static_cast<size_t>(switching_)].usable = true;
        switching_ = -1;
      }
      if (const auto move = control.step(view(), now)) {
        REQUIRE(switching_ < 0);  // One at a time
        ++moves;
        moved.push_back(move->worker);
        switching_ = move->worker;
        to_ = move->to;
        switched_at_ = now + 2s;
        workers[static_cast<size_t>(switching_)].usable = false;
      }
    }
  }

 private:
  WorkerIndex switching_ = -1;
  Role to_ = Role::kDecode;
  TimePoint switched_at_{};
};

RatioConfig automatic(const char* coupled = "never") {
  RatioConfig ratio;
  ratio.mode = "auto";
  ratio.coupled = coupled;
  return ratio;
}
constexpr Targets kTight{.ttft_ms = 2000, .tpot_ms = 30};

TEST_CASE("the decode batch fills the time per token, the memory or the slots") {
  LoadShape shape{.prompt_tokens = 1000,
                  .uncached_tokens = 1000,
                  .prefill_ms = 45,
                  .prefill_ms_p90 = 45,
                  .output_tokens = 200};
  const DecodePoint by_time = decode_point(profile_costs(), shape, {.tpot_ms = 20}, 0);
  CHECK(profile_costs().decode_ms(by_time.batch, by_time.batch * 1100) <= 19);
  CHECK(profile_costs().decode_ms(by_time.batch + 1, (by_time.batch + 1) * 1100) > 19);
  CHECK(decode_point(profile_costs(), shape, {.tpot_ms = 500}, 0).batch == 171);  // 206,000 / 1,200
  CHECK(decode_point(profile_costs(), shape, {.tpot_ms = 500}, 16).batch == 16);
  const DecodePoint never = decode_point(profile_costs(), shape, {.tpot_ms = 5}, 0);
  CHECK(!never.possible);
  CHECK(never.batch == 1);
}

TEST_CASE("prefill workers carry less than they compute, a few of them less still") {
  const LoadShape shape{.prompt_tokens = 4000,
                        .uncached_tokens = 4000,
                        .prefill_ms = 180,
                        .prefill_ms_p90 = 400,
                        .prefill_cv2 = 1,
                        .output_tokens = 100};
  const double one = prefill_per_second(shape, {.ttft_ms = 1000}, 1);
  CHECK(one < 0.9 * 1000 / 180);
  CHECK(prefill_per_second(shape, {.ttft_ms = 1000}, 8) > 8 * one);
  CHECK(prefill_per_second(shape, {.ttft_ms = 100}, 1) < one);
  CHECK(prefill_per_second(shape, {.ttft_ms = 1000}, 0) == 0);
}

TEST_CASE("coupled workers carry more where the time per token is loose, less where it is tight") {
  const LoadShape shape{.prompt_tokens = 1150,
                        .uncached_tokens = 1150,
                        .prefill_ms = 52,
                        .prefill_ms_p90 = 150,
                        .prefill_cv2 = 1,
                        .output_tokens = 210};
  RoleControl control(automatic("allow"), {.ttft_ms = 1000, .tpot_ms = 50});
  CHECK(control.best({4, 4, 0}, shape, shape, {.costs = profile_costs()}).coupled == 8);
  RoleControl tight(automatic("allow"), {.ttft_ms = 1000, .tpot_ms = 20});
  CHECK(tight.best({4, 4, 0}, shape, shape, {.costs = profile_costs()}).coupled == 0);
}

TEST_CASE("from any start the same split is reached within seconds, and then kept") {
  for (const auto& [prefill, decode] : {std::pair{1, 7}, {4, 4}, {7, 1}}) {
    CAPTURE(prefill);
    Fleet fleet(automatic(), kTight, prefill, decode);
    fleet.run(60, 20, 3000, 150);
    const Roles reached = fleet.roles();
    const auto shape = fleet.control.load().shape();
    REQUIRE(shape);
    const Roles best = fleet.control.best(reached, *shape, *shape, fleet.view());
    CHECK(fleet.control.capacity(reached, *shape, fleet.view()) >=
          0.95 * fleet.control.capacity(best, *shape, fleet.view()));
    CHECK(fleet.moves <= std::abs(best.prefill - prefill));
    const int before = fleet.moves;
    fleet.run(120, 20, 3000, 150);
    CHECK(fleet.moves == before);
  }
}

TEST_CASE("when the load changes other workers follow within half a minute, none twice") {
  Fleet fleet(automatic(), kTight, 4, 4);
  fleet.run(60, 20, 6000, 50);
  const Roles prompts = fleet.roles();
  fleet.moved.clear();
  fleet.run(30, 20, 300, 500);
  const Roles answers = fleet.roles();
  CHECK(prompts.prefill >= answers.prefill + 3);
  std::ranges::sort(fleet.moved);
  CHECK(std::ranges::adjacent_find(fleet.moved) == fleet.moved.end());
}

TEST_CASE("loose targets turn the pool coupled, tight ones turn it back") {
  Fleet loose(automatic("allow"), {.ttft_ms = 1000, .tpot_ms = 50}, 4, 4);
  loose.run(90, 20, 1150, 210);
  CHECK(loose.roles() == Roles{0, 0, 8});
  Fleet tight(automatic("allow"), {.ttft_ms = 1000, .tpot_ms = 20}, 0, 0, 8);
  tight.run(90, 20, 1150, 210);
  CHECK(tight.roles().coupled == 0);
}

TEST_CASE("bounds are kept, and roles that break them are mended") {
  RatioConfig ratio = automatic("allow");
  ratio.prefill_max = 2;
  ratio.decode_min = 3;
  ratio.coupled = "never";
  Fleet fleet(ratio, kTight, 4, 4);
  fleet.run(60, 20, 8000, 20);
  CHECK(fleet.roles().prefill == 2);
  ratio.prefill_min = ratio.prefill_max = 1;
  ratio.coupled = "allow";
  ratio.decode_min = 0;
  Fleet kept(ratio, {.ttft_ms = 1000, .tpot_ms = 50}, 4, 4);
  kept.run(90, 20, 1150, 210);
  CHECK(kept.roles().prefill == 1);
  CHECK(kept.roles().decode >= 1);
}

TEST_CASE("no role is ever left empty") {
  Fleet fleet(automatic(), kTight, 1, 1);
  fleet.run(60, 20, 9000, 2);
  CHECK(fleet.roles() == Roles{1, 1, 0});
  Fleet alone(automatic("allow"), kTight, 0, 1);
  alone.run(20, 20, 9000, 2);
  CHECK(alone.moves == 0);
}

TEST_CASE("recommend and fixed move nobody, and the recommendation follows the demand") {
  for (const char* mode : {"recommend", "fixed"}) {
    RatioConfig ratio = automatic();
    ratio.mode = mode;
    Fleet fleet(ratio, kTight, 1, 7);
    fleet.run(40, 20, 3000, 150);
    CHECK(fleet.moves == 0);
    const Recommendation slow = fleet.control.recommendation();
    CHECK(slow.prefill >= 3);
    CHECK(slow.decode >= 1);
    fleet.run(40, 60, 3000, 150);
    CHECK(fleet.control.recommendation().prefill > 2 * slow.prefill);
  }
  Fleet impossible(automatic(), {.ttft_ms = 1000, .tpot_ms = 3}, 2, 2);
  impossible.run(20, 20, 3000, 150);
  CHECK(impossible.control.recommendation().reason.find("TPOT target is impossible: one sequence "
                                                        "takes 13.9 ms, 3.0 allowed") !=
        std::string::npos);
}

TEST_CASE("a worker that cannot switch or is lost does not stop the others") {
  RoleControl control(automatic(), kTight);
  Fleet fleet(automatic(), kTight, 1, 7);
  for (int i = 0; i < 50; ++i)
    fleet.control.load().arrived({3000, 3000, 130, 150}, fleet.now += 50ms);
  const auto move = fleet.control.step(fleet.view(), fleet.now);
  REQUIRE(move);
  CHECK(move->to == Role::kPrefill);
  CHECK(!fleet.control.step(fleet.view(), fleet.now + 20s));
  fleet.control.failed(move->worker, fleet.now);
  CHECK(!fleet.control.step(fleet.view(), fleet.now + 1s));
  const auto other = fleet.control.step(fleet.view(), fleet.now + 6s);
  REQUIRE(other);
  CHECK(other->worker != move->worker);
  fleet.control.left(other->worker);
  CHECK(fleet.control.step(fleet.view(), fleet.now + 20s));
}

TEST_CASE("long answers show before the first of them has ended") {
  LoadAverages load;
  TimePoint now{Duration(1h)};
  for (int i = 0; i < 100; ++i) {
    load.arrived({500, 500, 20, 100}, now += 50ms);
    load.ended(50);
    load.decoding(5, 20, now);
  }
  const double before = load.shape()->output_tokens;
  for (int i = 0; i < 10; ++i) load.decoding(200, 20, now += 1s);
  CHECK(load.shape()->output_tokens > 2 * before);
}

}  // namespace
}  // namespace tandem::scheduler

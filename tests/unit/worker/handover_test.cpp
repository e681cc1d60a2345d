// Prefill and decode workers in one process, joined by real links and the tcp transport, driven by
// a test router: answers equal those of a coupled worker, and whatever ends in the middle, both
// workers return to idle.
#include <doctest/doctest.h>

#include "tests/unit/worker/worker_pair.h"

using namespace tandem;
using namespace tandem::worker;

namespace {

std::vector<TokenId> alone(const link::Leg& leg, int choice) {
  static const std::unique_ptr<Worker> coupled = start_worker(quick_config(), Role::kCoupled, "c0");
  TestRouter router;
  const auto session = router.connect(coupled->address());
  link::Leg single = leg;
  single.transfer.value = random_u64();
  single.choices = 1;
  single.seeds = {leg.seeds[static_cast<size_t>(choice)]};
  router.send(session, link::DecodeCommand{single, true, ""});
  return router.wait_finished(single.transfer).output();
}

}  // namespace

TEST_CASE("answers through both workers equal those of one") {
  Pair pair;
  for (const int prompt : {1, 63, 64, 65, 127, 128, 129, 700}) {
    for (const int choices : {1, 3}) {
      CAPTURE(prompt);
      const link::Leg leg = make_leg(static_cast<uint64_t>(prompt), prompt, 20, choices);
      const Answer answer = pair.router.wait_finished(pair.send(leg), choices);
      for (const auto& failure : answer.failures) MESSAGE(failure.message);
      REQUIRE(answer.failures.empty());
      for (int i = 0; i < choices; ++i) CHECK(answer.output(i) == alone(leg, i));
    }
  }
  CHECK(pair.wait_idle());
}

TEST_CASE("many at once are answered as each alone") {
  Pair pair;
  std::vector<std::pair<link::Leg, TransferId>> sent;
  for (uint64_t i = 0; i < 8; ++i) {
    const link::Leg leg = make_leg(i, 30 + 90 * static_cast<int>(i), 60);
    sent.emplace_back(leg, pair.send(leg));
  }
  for (const auto& [leg, transfer] : sent) {
    const Answer answer = pair.router.wait_finished(transfer);
    CHECK(answer.failures.empty());
    CHECK(answer.output() == alone(leg, 0));
  }
  CHECK(pair.wait_idle());
}

TEST_CASE("rows arrive while the prompt is computed") {
  Config config = quick_config();
  config.sim.prefill_base_ms = 20;
  Pair pair(config);
  const TransferId transfer = pair.send(make_leg(3, 1500, 5));
  REQUIRE(pair.router.wait_finished(transfer).failures.empty());
  const Answer answer = pair.router.wait_event(transfer, "joined");
  REQUIRE(answer.prefill);
  const double whole = static_cast<double>(answer.prefill->ended_us - answer.prefill->started_us);
  for (const auto& event : answer.events) {
    const double at = static_cast<double>(event.at_us - answer.prefill->started_us);
    if (event.name == "kv_first") CHECK(at < 0.1 * whole);
    if (event.name == "kv_last") {
      CHECK(event.bytes == 1500 * 2048);
      REQUIRE_FALSE(event.landed.empty());
      CHECK(event.landed.back().second == event.bytes);
    }
  }
}

TEST_CASE("cancelling in every phase brings both workers back to idle") {
  Config config = quick_config();
  config.sim.prefill_base_ms = 10;
  Pair pair(config);
  for (const char* phase : {"accepted", "granted", "prefill_start", "joined"}) {
    CAPTURE(phase);
    const TransferId transfer = pair.send(make_leg(3, 900, 1000, 2));
    REQUIRE(pair.router.wait_event(transfer, phase).has_event(phase));
    pair.cancel(transfer);
    CHECK(pair.wait_idle());
  }
  // One leg alone, as when the other command never came.
  link::Leg leg = make_leg(3, 900, 1000);
  pair.router.send(pair.to_decode, link::DecodeCommand{leg, false, random_bytes(16)});
  REQUIRE(pair.router.wait_event(leg.transfer, "accepted").has_event("accepted"));
  pair.router.cancel(pair.to_decode, leg.transfer);
  CHECK(pair.wait_idle());
}

TEST_CASE("a router's end takes both legs along") {
  Config config = quick_config();
  config.sim.prefill_base_ms = 10;
  Pair pair(config);
  {
    TestRouter other;
    const auto to_prefill = other.connect(pair.prefill->address());
    const auto to_decode = other.connect(pair.decode->address());
    const link::Leg leg = make_leg(3, 1500, 500);
    const std::string token = random_bytes(16);
    other.send(to_decode, link::DecodeCommand{leg, false, token});
    other.send(to_prefill, link::PrefillCommand{leg, pair.decode->address(), "d0",
                                                to_decode->peer().epoch, token});
    REQUIRE(other.wait_event(leg.transfer, "prefill_start").has_event("prefill_start"));
  }
  CHECK(pair.wait_idle());
  CHECK(pair.router.wait_finished(pair.send(make_leg(3, 100, 5))).failures.empty());
}

TEST_CASE("a wrong token or an earlier life of the decode worker is denied") {
  Pair pair;
  const link::Leg leg = make_leg(3, 100, 50);
  pair.router.send(pair.to_decode, link::DecodeCommand{leg, false, std::string(16, 'a')});
  pair.router.send(pair.to_prefill,
                   link::PrefillCommand{leg, pair.decode->address(), "d0",
                                        pair.to_decode->peer().epoch, std::string(16, 'b')});
  CHECK_FALSE(pair.router.wait_finished(leg.transfer).failures.empty());
  pair.cancel(leg.transfer);
  CHECK(pair.wait_idle());
  link::Leg other = make_leg(3, 100, 50);
  pair.router.send(pair.to_prefill, link::PrefillCommand{other, pair.decode->address(), "d0",
                                                         Epoch{1}, std::string(16, 'b')});
  const Answer answer = pair.router.wait_finished(other.transfer);
  REQUIRE(answer.failures.size() == 1);
  CHECK(answer.failures[0].retryable);
  CHECK(pair.wait_idle());
}

TEST_CASE("the end of one worker fails the other's leg, which returns to idle") {
  Config config = quick_config();
  config.sim.prefill_base_ms = 20;
  {
    Pair pair(config);
    const TransferId transfer = pair.send(make_leg(3, 1800, 50));
    REQUIRE(pair.router.wait_event(transfer, "prefill_start").has_event("prefill_start"));
    pair.decode->stop();
    CHECK_FALSE(pair.router.wait_finished(transfer).failures.empty());
    CHECK(pair.router.wait_idle(pair.to_prefill));
  }
  {
    Pair pair(config);
    const TransferId transfer = pair.send(make_leg(3, 1800, 50));
    REQUIRE(pair.router.wait_event(transfer, "prefill_start").has_event("prefill_start"));
    pair.prefill->stop();
    const Answer answer = pair.router.wait_answer(
        transfer, [](const Answer& got) { return got.failures.size() >= 2; });
    CHECK(answer.failures.size() == 2);
    CHECK(pair.router.wait_idle(pair.to_decode));
  }
}

TEST_CASE("two hundred requests, many cancelled at random, leave nothing behind") {
  const uint64_t seed = seed_from_environment();
  MESSAGE("TANDEM_SEED=" << seed);
  Config config = quick_config();
  config.sim.prefill_base_ms = 0.2;
  config.sim.decode_base_ms = 0.2;
  Pair pair(config);
  uint64_t counter = 0;
  const auto draw = [&](uint64_t below) { return counter_random(seed, counter++) % below; };
  const char* phases[] = {"accepted", "granted", "prefill_start", "joined"};
  for (int round = 0; round < 50; ++round) {
    std::vector<std::tuple<TransferId, int, bool>> sent;
    for (int i = 0; i < 4; ++i) {
      const int choices = 1 + static_cast<int>(draw(2));
      const link::Leg leg = make_leg(draw(1000), 1 + static_cast<int>(draw(600)),
                                     2 + static_cast<int>(draw(60)), choices);
      sent.emplace_back(pair.send(leg), choices, draw(2) == 0);
    }
    for (const auto& [transfer, choices, cancelled] : sent) {
      if (!cancelled) continue;
      const std::string phase = phases[draw(4)];
      pair.router.wait_answer(transfer, [&](const Answer& answer) {
        return answer.has_event(phase) || !answer.failures.empty() || answer.finished(1);
      });
      pair.cancel(transfer);
    }
    for (const auto& [transfer, choices, cancelled] : sent) {
      if (cancelled) continue;
      const Answer answer = pair.router.wait_finished(transfer, choices);
      // Slots that a cancelled leg still holds may refuse one; nothing else may go wrong.
      for (const auto& failure : answer.failures) {
        if (failure.code != ErrorCode::kResourceExhausted) MESSAGE(failure.message);
        CHECK(failure.code == ErrorCode::kResourceExhausted);
      }
      if (!answer.failures.empty()) pair.cancel(transfer);
    }
  }
  CHECK(pair.wait_idle());
}

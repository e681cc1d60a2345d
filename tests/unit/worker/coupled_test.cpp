// A coupled worker over a real link: prompts and tokens in one process, and every way in which a
// leg can end, after each of which the worker is as idle as before.
#include <doctest/doctest.h>

#include "common/clock.h"
#include "tests/unit/worker/test_router.h"
#include "worker/worker.h"

using namespace tandem;
using namespace tandem::worker;

namespace {

std::unique_ptr<Worker> start_coupled(const Config& config) {
  auto worker = make_worker(config, Role::kCoupled, "c0", "127.0.0.1:0");
  TANDEM_CHECK(worker.ok(), worker.status().to_string());
  (*worker)->start();
  return std::move(*worker);
}

std::vector<TokenId> run(TestRouter& router, const link::SessionPtr& session, link::Leg leg) {
  leg.transfer.value = random_u64();
  router.send(session, link::DecodeCommand{leg, true, ""});
  const Answer answer = router.wait_finished(leg.transfer);
  CHECK(answer.failures.empty());
  return answer.output();
}

// Chunks of a second and more.
Config slow_config() {
  Config config = quick_config();
  config.sim.prefill_base_ms = 5000;
  return config;
}

}  // namespace

TEST_CASE("a prompt is answered with exactly the tokens asked for") {
  const auto worker = start_coupled(quick_config());
  TestRouter router;
  const auto session = router.connect(worker->address());
  for (const int prompt : {1, 63, 64, 65, 128, 129, 500}) {
    const link::Leg leg = make_leg(7, prompt, 20);
    router.send(session, link::DecodeCommand{leg, true, ""});
    const Answer answer = router.wait_finished(leg.transfer);
    REQUIRE(answer.failures.empty());
    CHECK(answer.output().size() == 20);
    CHECK(answer.finish() == FinishReason::kLength);
    CHECK(answer.prefill->computed_tokens == prompt);
    for (const char* event : {"accepted", "prefill_start", "joined", "released"}) {
      CHECK(router.wait_event(leg.transfer, event).has_event(event));
    }
  }
  CHECK(router.wait_idle(session));
  CHECK(router.load(session).slots_free == 8);
}

TEST_CASE("one token asked for is one token, and one that fills the context is the last") {
  Config config = quick_config();
  config.model.context = 256;
  const auto worker = start_coupled(config);
  TestRouter router;
  const auto session = router.connect(worker->address());
  CHECK(run(router, session, make_leg(1, 100, 1)).size() == 1);
  CHECK(run(router, session, make_leg(1, 256, 50)).size() == 1);
  CHECK(run(router, session, make_leg(1, 250, 50)).size() == 7);
  CHECK(router.wait_idle(session));
}

TEST_CASE("many at once, with several choices, answer as each alone") {
  const auto worker = start_coupled(quick_config());
  TestRouter router;
  const auto session = router.connect(worker->address());
  std::vector<link::Leg> legs;
  for (uint64_t i = 0; i < 4; ++i) {
    legs.push_back(make_leg(i, 70 + 60 * static_cast<int>(i), 30, 2));
    router.send(session, link::DecodeCommand{legs.back(), true, ""});
  }
  std::vector<Answer> together;
  for (const link::Leg& leg : legs) together.push_back(router.wait_finished(leg.transfer, 2));
  for (size_t i = 0; i < legs.size(); ++i) {
    REQUIRE(together[i].failures.empty());
    for (int choice = 0; choice < 2; ++choice) {
      link::Leg alone = legs[i];
      alone.choices = 1;
      alone.seeds = {legs[i].seeds[static_cast<size_t>(choice)]};
      CHECK(together[i].output(choice) == run(router, session, alone));
    }
    CHECK(together[i].output(0) != together[i].output(1));
  }
  CHECK(router.wait_idle(session));
}

TEST_CASE("a resumed answer continues as the undisturbed one") {
  const auto worker = start_coupled(quick_config());
  TestRouter router;
  const auto session = router.connect(worker->address());
  link::Leg leg = make_leg(5, 200, 100);
  leg.sampling.repetition_penalty = 1.2;
  const std::vector<TokenId> whole = run(router, session, leg);
  REQUIRE(whole.size() == 100);
  for (const size_t cut : {1u, 40u, 99u}) {
    link::Leg rest = leg;
    rest.tokens.insert(rest.tokens.end(), whole.begin(), whole.begin() + static_cast<long>(cut));
    const std::vector<TokenId> tail = run(router, session, rest);
    CHECK(tail == std::vector<TokenId>(whole.begin() + static_cast<long>(cut), whole.end()));
  }
}

TEST_CASE("what can never run is refused for good, what does not fit now for now") {
  const auto worker = start_coupled(quick_config());
  TestRouter router;
  const auto session = router.connect(worker->address());
  const auto refusal = [&](const link::Leg& leg) {
    router.send(session, link::DecodeCommand{leg, true, ""});
    const Answer answer = router.wait_finished(leg.transfer);
    REQUIRE(answer.failures.size() == 1);
    return answer.failures[0];
  };
  link::Leg leg = make_leg(1, 10, 5);
  leg.tokens[3] = 1000;
  CHECK(refusal(leg).code == ErrorCode::kInvalidArgument);
  CHECK_FALSE(refusal(make_leg(1, 2049, 5)).retryable);
  CHECK_FALSE(refusal(make_leg(1, 10, 5, 9)).retryable);
  leg = make_leg(1, 10, 5);
  leg.sampling.logit_bias = {{1000, 1.0f}};
  CHECK_FALSE(refusal(leg).retryable);

  link::DecodeCommand transfer{make_leg(1, 10, 5), false, std::string(16, 't')};
  router.send(session, transfer);
  CHECK(router.wait_finished(transfer.leg.transfer).failures.at(0).code ==
        ErrorCode::kFailedPrecondition);
  link::PrefillCommand prefill{make_leg(1, 10, 5), "", "", {}, ""};
  router.send(session, prefill);
  CHECK(router.wait_finished(prefill.leg.transfer).failures.at(0).code ==
        ErrorCode::kFailedPrecondition);

  const link::Leg big = make_leg(1, 600, 1000, 8);
  router.send(session, link::DecodeCommand{big, true, ""});
  CHECK(router.wait_event(big.transfer, "accepted").has_event("accepted"));
  const link::LegFailed full = refusal(make_leg(2, 10, 5));
  CHECK(full.code == ErrorCode::kResourceExhausted);
  CHECK(full.retryable);
  CHECK(refusal(big).code == ErrorCode::kInvalidArgument);  // Its id is taken.
  router.cancel(session, big.transfer);
  CHECK(router.wait_idle(session));
}

TEST_CASE("cancelling in every phase gives everything back") {
  const auto worker = start_coupled(quick_config());
  TestRouter router;
  const auto session = router.connect(worker->address());
  for (const char* phase : {"accepted", "prefill_start", "joined"}) {
    CAPTURE(phase);
    const link::Leg leg = make_leg(3, 700, 1000, 2);
    router.send(session, link::DecodeCommand{leg, true, ""});
    REQUIRE(router.wait_event(leg.transfer, phase).has_event(phase));
    router.cancel(session, leg.transfer);
    CHECK(router.wait_event(leg.transfer, "released").failures.empty());
    CHECK(router.wait_idle(session));
  }
}

TEST_CASE("cancelling one choice leaves the others alone") {
  const auto worker = start_coupled(quick_config());
  TestRouter router;
  const auto session = router.connect(worker->address());
  const link::Leg leg = make_leg(3, 100, 400, 3);
  const std::vector<TokenId> alone = [&] {
    link::Leg single = leg;
    single.choices = 1;
    single.seeds = {leg.seeds[1]};
    return run(router, session, single);
  }();
  for (const char* phase : {"accepted", "joined"}) {
    link::Leg again = leg;
    again.transfer.value = random_u64();
    router.send(session, link::DecodeCommand{again, true, ""});
    router.wait_event(again.transfer, phase);
    router.cancel(session, again.transfer, 0);  // The one that computes for all.
    const Answer answer = router.wait_answer(again.transfer, [](const Answer& got) {
      return got.finish(1) != FinishReason::kNone && got.finish(2) != FinishReason::kNone;
    });
    CHECK(answer.failures.empty());
    CHECK(answer.output(1) == alone);
    CHECK(answer.output(2).size() == 400);
    CHECK(answer.output(0).size() < 400);
  }
  CHECK(router.wait_idle(session));
}

TEST_CASE("a cancel does not wait for the chunk, nor does a deadline or the router's end") {
  const auto worker = start_coupled(slow_config());
  TestRouter router;
  const auto session = router.connect(worker->address());
  const auto start = [&](const link::SessionPtr& to, int64_t deadline_ms) {
    link::Leg leg = make_leg(3, 64, 10);
    leg.deadline_ms = deadline_ms;
    router.send(to, link::DecodeCommand{leg, true, ""});
    REQUIRE(router.wait_event(leg.transfer, "prefill_start").has_event("prefill_start"));
    return leg.transfer;
  };
  const Clock& clock = SystemClock::get();
  TimePoint before = clock.now();
  router.cancel(session, start(session, 0));
  CHECK(router.wait_idle(session));
  const Answer late = router.wait_finished(start(session, 200));
  CHECK(late.failures.at(0).code == ErrorCode::kDeadlineExceeded);
  CHECK(router.wait_idle(session));
  {
    TestRouter other;
    const auto second = other.connect(worker->address());
    link::Leg leg = make_leg(3, 64, 10);
    other.send(second, link::DecodeCommand{leg, true, ""});
    REQUIRE(other.wait_event(leg.transfer, "prefill_start").has_event("prefill_start"));
  }
  CHECK(router.wait_load(session, [](const link::Load& load) { return load.waiting == 0; }));
  CHECK(router.wait_idle(session));
  CHECK(clock.now() - before < std::chrono::milliseconds(4000));
}

TEST_CASE("a router's end takes its own legs along and no others") {
  const auto worker = start_coupled(quick_config());
  TestRouter router;
  const auto session = router.connect(worker->address());
  const link::Leg mine = make_leg(1, 100, 300);
  {
    TestRouter other;
    const auto second = other.connect(worker->address());
    const link::Leg theirs = make_leg(2, 100, 1500);
    other.send(second, link::DecodeCommand{theirs, true, ""});
    router.send(session, link::DecodeCommand{mine, true, ""});
    REQUIRE(other.wait_event(theirs.transfer, "joined").has_event("joined"));
    router.cancel(session, theirs.transfer);  // Not ours: nothing happens.
    REQUIRE(other
                .wait_answer(theirs.transfer,
                             [](const Answer& answer) { return answer.output().size() > 20; })
                .failures.empty());
  }
  const Answer answer = router.wait_finished(mine.transfer);
  CHECK(answer.failures.empty());
  CHECK(answer.output().size() == 300);
  CHECK(router.wait_idle(session));
}

TEST_CASE("a draining worker finishes what it has and takes nothing new") {
  const auto worker = start_coupled(quick_config());
  TestRouter router;
  const auto session = router.connect(worker->address());
  const link::Leg leg = make_leg(1, 100, 200);
  router.send(session, link::DecodeCommand{leg, true, ""});
  REQUIRE(router.wait_event(leg.transfer, "accepted").has_event("accepted"));
  static_cast<void>(
      session->send(link::FrameKind::kControl, link::ControlCommand{"drain"}.encode()));
  const link::Leg late = make_leg(1, 100, 200);
  router.send(session, link::DecodeCommand{late, true, ""});
  CHECK(router.wait_finished(late.transfer).failures.at(0).code == ErrorCode::kUnavailable);
  CHECK(router.wait_finished(leg.transfer).output().size() == 200);
  CHECK(router.wait_load(session, [](const link::Load& load) { return load.draining; }));
  static_cast<void>(
      session->send(link::FrameKind::kControl, link::ControlCommand{"resume"}.encode()));
  CHECK(run(router, session, make_leg(1, 100, 5)).size() == 5);
}

TEST_CASE("stopping ends every leg with a reason") {
  auto worker = start_coupled(slow_config());
  TestRouter router;
  const auto session = router.connect(worker->address());
  const link::Leg leg = make_leg(1, 100, 200);
  router.send(session, link::DecodeCommand{leg, true, ""});
  REQUIRE(router.wait_event(leg.transfer, "prefill_start").has_event("prefill_start"));
  worker->stop();
  CHECK(router.wait_finished(leg.transfer).failures.at(0).code == ErrorCode::kUnavailable);
  CHECK(router.wait_closed(session));
}

TEST_CASE("nonsense from a router ends its session and nothing else") {
  const auto worker = start_coupled(quick_config());
  TestRouter router;
  TestRouter other;
  const auto good = other.connect(worker->address());
  const auto bad = router.connect(worker->address());
  static_cast<void>(bad->send(link::FrameKind::kDecode, "nonsense"));
  CHECK(router.wait_closed(bad));
  const auto odd = router.connect(worker->address());
  static_cast<void>(odd->send(link::FrameKind::kOpen, "nonsense"));
  CHECK(router.wait_closed(odd));
  CHECK(run(other, good, make_leg(1, 100, 5)).size() == 5);
}

TEST_CASE("counters are pushed with the load") {
  const auto worker = start_coupled(quick_config());
  TestRouter router;
  const auto session = router.connect(worker->address());
  run(router, session, make_leg(1, 100, 11));
  CHECK(router.wait_load(session, [](const link::Load& load) {
    const auto tokens = load.counters.find("tandem_decode_tokens_total");
    const auto prompt = load.counters.find("tandem_prefill_tokens_total{source=\"computed\"}");
    return tokens != load.counters.end() && tokens->second >= 10 && prompt != load.counters.end() &&
           prompt->second >= 100;
  }));
}

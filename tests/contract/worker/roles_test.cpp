// A worker changes its role while it serves: nothing that it has accepted is lost, it is the same
// worker to its peers, and a partitioned worker's answers are a coupled one's. The router's part is
// played by the test: it sends what was failed retryably to somebody else, with the tokens so far.
#include <doctest/doctest.h>

#include "tests/contract/worker/subject.h"
#include "tests/unit/worker/worker_pair.h"

using namespace tandem;
using namespace tandem::worker;

namespace {

void ask(const link::SessionPtr& session, Role role) {
  const link::ControlCommand command{"role", role};
  REQUIRE(session->send(link::FrameKind::kControl, command.encode()).ok());
}

bool wait_role(TestRouter& router, const link::SessionPtr& session, Role role) {
  return router.wait_load(session, [role](const link::Load& load) {
    return load.role == role && load.switching_to.empty() && !load.draining;
  });
}

link::Leg fresh(link::Leg leg) {
  leg.transfer.value = random_u64();
  return leg;
}

link::Leg sampled_leg(uint64_t seed, int prompt, int max_tokens, int choices = 1) {
  link::Leg leg = make_leg(seed, prompt, max_tokens, choices);
  leg.sampling.temperature = 0.8;
  return leg;
}

std::vector<std::vector<TokenId>> outputs(const Answer& answer, int choices) {
  std::vector<std::vector<TokenId>> all;
  for (int i = 0; i < choices; ++i) all.push_back(answer.output(i));
  return all;
}

// A worker that stays what it is, for all tests: a real one takes seconds to start.
Worker& fixed(Role role) {
  static const auto prefill = start_worker(subject_config(), Role::kPrefill, "p0");
  static const auto decode = start_worker(subject_config(), Role::kDecode, "d0");
  static const auto coupled = start_worker(subject_config(), Role::kCoupled, "c0");
  return role == Role::kPrefill ? *prefill : role == Role::kDecode ? *decode : *coupled;
}

// What a worker that computes everything itself answers.
struct Oracle {
  TestRouter router;
  link::SessionPtr session = router.connect(fixed(Role::kCoupled).address());

  std::vector<std::vector<TokenId>> answer(const link::Leg& wanted) {
    const link::Leg leg = fresh(wanted);
    router.send(session, link::DecodeCommand{leg, true, ""});
    const Answer got = router.wait_finished(leg.transfer, leg.choices);
    REQUIRE(got.failures.empty());
    return outputs(got, leg.choices);
  }
};

// A worker that changes, and two that do not: somebody to stream to, and somebody to stream from.
struct Cluster {
  explicit Cluster(const Config& config = subject_config(), Role role = Role::kDecode)
      : changing(start_worker(config, role, "x0")) {
    to_changing = router.connect(changing->address());
    to_prefill = router.connect(fixed(Role::kPrefill).address());
    to_decode = router.connect(fixed(Role::kDecode).address());
  }

  link::Leg local(const link::Leg& wanted) {
    const link::Leg leg = fresh(wanted);
    router.send(to_changing, link::DecodeCommand{leg, true, ""});
    return leg;
  }
  link::Leg remote(const link::Leg& wanted, const link::SessionPtr& from,
                   const link::SessionPtr& to) {
    const link::Leg leg = fresh(wanted);
    const std::string token = random_bytes(16);
    router.send(to, link::DecodeCommand{leg, false, token});
    const link::Hello& peer = to->peer();
    router.send(from, link::PrefillCommand{leg, peer.listen, peer.name, peer.epoch, token});
    return leg;
  }
  // Everything that a worker of the role should do gives the oracle's answer.
  void check_serves(Role role, Oracle& oracle, uint64_t seed) {
    const link::Leg wanted = sampled_leg(seed, 150, 8);
    const auto expected = oracle.answer(wanted);
    std::vector<link::Leg> sent;
    if (serves_decode(role)) sent.push_back(local(wanted));
    if (serves_decode(role) && role != Role::kCoupled) {
      sent.push_back(remote(wanted, to_prefill, to_changing));
    }
    if (serves_prefill(role)) sent.push_back(remote(wanted, to_changing, to_decode));
    for (const link::Leg& leg : sent) {
      const Answer answer = router.wait_finished(leg.transfer);
      for (const auto& failure : answer.failures) MESSAGE(failure.message);
      CHECK(answer.failures.empty());
      CHECK(outputs(answer, 1) == expected);
    }
    CHECK(router.wait_idle(to_changing));
  }

  std::unique_ptr<Worker> changing;
  TestRouter router;
  link::SessionPtr to_changing, to_prefill, to_decode;
};

}  // namespace

TEST_CASE("a partitioned worker answers as a coupled one, prompts and choices of every length") {
  if (!subject_available()) return;
  Oracle oracle;
  Cluster cluster(subject_config(), Role::kPartitioned);
  std::vector<std::pair<link::Leg, std::vector<std::vector<TokenId>>>> sent;
  for (const int prompt : {1, 63, 64, 257, 700}) {
    const link::Leg wanted =
        sampled_leg(static_cast<uint64_t>(prompt), prompt, 12, prompt == 64 ? 2 : 1);
    const auto expected = oracle.answer(wanted);
    sent.emplace_back(cluster.local(wanted), expected);
  }
  for (const auto& [leg, expected] : sent) {
    CAPTURE(leg.prompt_count);
    // More than there are slots: some are refused for want of room, as anywhere.
    const Answer answer = cluster.router.wait_finished(leg.transfer, leg.choices);
    if (!answer.failures.empty()) {
      CHECK(answer.failures.front().code == ErrorCode::kResourceExhausted);
      const link::Leg again = cluster.local(leg);
      const Answer second = cluster.router.wait_finished(again.transfer, leg.choices);
      REQUIRE(second.failures.empty());
      CHECK(outputs(second, leg.choices) == expected);
      continue;
    }
    CHECK(outputs(answer, leg.choices) == expected);
  }
  CHECK(cluster.router.wait_idle(cluster.to_changing));
}

TEST_CASE("a worker takes every role after every other, and serves in each") {
  if (!subject_available()) return;
  Oracle oracle;
  Cluster cluster;
  const Role order[] = {Role::kPrefill, Role::kDecode,  Role::kCoupled, Role::kPartitioned,
                        Role::kCoupled, Role::kDecode,  Role::kPrefill, Role::kPartitioned,
                        Role::kPrefill, Role::kCoupled, Role::kPrefill, Role::kPartitioned,
                        Role::kDecode};
  uint64_t seed = 100;
  for (const Role role : order) {
    CAPTURE(role_name(role));
    ask(cluster.to_changing, role);
    REQUIRE(wait_role(cluster.router, cluster.to_changing, role));
    CHECK(cluster.router.load(cluster.to_changing).slots == subject_config().pool(role).slots);
    cluster.check_serves(role, oracle, ++seed);
  }
}

TEST_CASE("what runs at a change of role ends, or goes on elsewhere without losing a token") {
  if (!subject_available()) return;
  Oracle oracle;
  for (const int drain_ms : {0, 60000}) {
    Config config = subject_config();
    config.worker.role_drain = Milliseconds(drain_ms);
    Cluster cluster(config, Role::kPrefill);
    for (const Role from : {Role::kDecode, Role::kCoupled, Role::kPartitioned}) {
      CAPTURE(drain_ms);
      CAPTURE(role_name(from));
      ask(cluster.to_changing, from);
      REQUIRE(wait_role(cluster.router, cluster.to_changing, from));
      const link::Leg wanted = sampled_leg(7, 130, 100);
      const auto expected = oracle.answer(wanted);
      const link::Leg leg = cluster.local(wanted);
      cluster.router.wait_answer(leg.transfer,
                                 [](const Answer& answer) { return answer.output().size() >= 3; });
      ask(cluster.to_changing, Role::kPrefill);
      REQUIRE(wait_role(cluster.router, cluster.to_changing, Role::kPrefill));
      Answer answer = cluster.router.wait_finished(leg.transfer);
      if (drain_ms > 0) CHECK(answer.failures.empty());
      std::vector<TokenId> output = answer.output();
      if (!answer.failures.empty()) {
        CHECK(answer.failures.front().retryable);
        link::Leg rest = wanted;
        rest.tokens.insert(rest.tokens.end(), output.begin(), output.end());
        const link::Leg resumed = cluster.remote(rest, cluster.to_changing, cluster.to_decode);
        const Answer second = cluster.router.wait_finished(resumed.transfer);
        REQUIRE(second.failures.empty());
        for (const TokenId token : second.output()) output.push_back(token);
      }
      CHECK(output == expected.front());
    }
  }
}

TEST_CASE("new legs are refused while the worker changes, and say that another may take them") {
  if (!subject_available()) return;
  Config config = subject_config();
  config.worker.role_drain = Milliseconds(60000);
  Cluster cluster(config, Role::kCoupled);
  const link::Leg running = cluster.local(sampled_leg(1, 64, 150));
  REQUIRE(cluster.router.wait_event(running.transfer, "joined").has_event("joined"));
  ask(cluster.to_changing, Role::kDecode);
  const link::Leg late = cluster.local(sampled_leg(2, 64, 4));
  const Answer refused = cluster.router.wait_finished(late.transfer);
  REQUIRE(refused.failures.size() == 1);
  CHECK(refused.failures.front().code == ErrorCode::kUnavailable);
  CHECK(refused.failures.front().retryable);
  CHECK(cluster.router.wait_finished(running.transfer).failures.empty());
  CHECK(wait_role(cluster.router, cluster.to_changing, Role::kDecode));
}

TEST_CASE("a second change during a change is refused, the same one again is none") {
  if (!subject_available()) return;
  Config config = subject_config();
  config.worker.role_drain = Milliseconds(60000);
  Cluster cluster(config, Role::kCoupled);
  const link::Leg running = cluster.local(sampled_leg(1, 64, 150));
  REQUIRE(cluster.router.wait_event(running.transfer, "joined").has_event("joined"));
  ask(cluster.to_changing, Role::kDecode);
  ask(cluster.to_changing, Role::kPrefill);
  CHECK(cluster.router.wait_load(cluster.to_changing, [](const link::Load& load) {
    return load.switching_to == "decode" && load.role == Role::kCoupled && load.draining &&
           load.role_error.find("under way") != std::string::npos;
  }));
  ask(cluster.to_changing, Role::kDecode);
  CHECK(cluster.router.wait_load(cluster.to_changing,
                                 [](const link::Load& load) { return load.role_error.empty(); }));
  cluster.router.cancel(cluster.to_changing, running.transfer);
  CHECK(wait_role(cluster.router, cluster.to_changing, Role::kDecode));
  ask(cluster.to_changing, Role::kDecode);
  CHECK(wait_role(cluster.router, cluster.to_changing, Role::kDecode));
}

TEST_CASE("a role that cannot be had leaves the worker what it was") {
  if (!subject_available()) return;
  Oracle oracle;
  Config config = subject_config();
  config.transfer.landing_bytes = config.transfer.segment_bytes = 1ll << 40;
  const auto worker = start_worker(config, Role::kCoupled, "x0");
  TestRouter router;
  const auto session = router.connect(worker->address());
  for (const Role role : {Role::kDecode, Role::kPartitioned}) {
    ask(session, role);
    REQUIRE(router.wait_load(session, [role](const link::Load& load) {
      return load.role == Role::kCoupled && load.switching_to.empty() &&
             load.role_error.starts_with("not " + std::string(role_name(role))) && !load.draining;
    }));
  }
  const link::Leg wanted = sampled_leg(3, 150, 8);
  const link::Leg leg = fresh(wanted);
  router.send(session, link::DecodeCommand{leg, true, ""});
  CHECK(outputs(router.wait_finished(leg.transfer), 1) == oracle.answer(wanted));
}

TEST_CASE("cancels, lost routers and stops leave nothing behind in a partitioned worker") {
  if (!subject_available()) return;
  Cluster cluster(subject_config(), Role::kPartitioned);
  for (const char* phase : {"accepted", "granted", "prefill_start", "joined"}) {
    CAPTURE(phase);
    const link::Leg leg = cluster.local(sampled_leg(5, 600, 100));
    REQUIRE(cluster.router.wait_event(leg.transfer, phase).has_event(phase));
    cluster.router.cancel(cluster.to_changing, leg.transfer);
    CHECK(cluster.router.wait_idle(cluster.to_changing));
  }
  {
    TestRouter gone;
    const auto session = gone.connect(cluster.changing->address());
    const link::Leg leg = fresh(sampled_leg(6, 600, 100));
    gone.send(session, link::DecodeCommand{leg, true, ""});
    REQUIRE(gone.wait_event(leg.transfer, "prefill_start").has_event("prefill_start"));
  }
  CHECK(cluster.router.wait_idle(cluster.to_changing));
  const link::Leg last = cluster.local(sampled_leg(8, 600, 100));
  REQUIRE(cluster.router.wait_event(last.transfer, "prefill_start").has_event("prefill_start"));
  cluster.changing->stop();
  CHECK(cluster.router.wait_finished(last.transfer).failures.at(0).code == ErrorCode::kUnavailable);
}

TEST_CASE("every router hears first what steps take, and then what they took") {
  if (!subject_available()) return;
  const auto worker = start_worker(subject_config(), Role::kCoupled, "x0");
  for (int i = 0; i < 2; ++i) {
    TestRouter router;
    const auto session = router.connect(worker->address());
    CHECK(router.wait_load(session, [](const link::Load& load) {
      bool chunk = false, step = false;
      for (const link::StepSample& sample : load.samples) {
        chunk |= sample.prompt_tokens > 0 && sample.sequences == 0 && sample.ms > 0;
        step |= sample.prompt_tokens == 0 && sample.sequences > 0 && sample.ms > 0;
      }
      return chunk && step;
    }));
    const link::Leg leg = fresh(sampled_leg(9, 200, 30));
    router.send(session, link::DecodeCommand{leg, true, ""});
    CHECK(router.wait_load(session, [](const link::Load& load) {
      for (const link::StepSample& sample : load.samples) {
        if (sample.prompt_first > 0 && load.counters.contains("tandem_decode_steps_total") &&
            load.counters.at("tandem_prefill_tokens_total{source=\"computed\"}") > 0) {
          return true;
        }
      }
      return false;
    }));
    CHECK(router.wait_finished(leg.transfer).failures.empty());
  }
}

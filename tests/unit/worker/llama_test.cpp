// The hand-over with a real model, over each transport that this build has. Skipped without the
// engine or its model.
#include <doctest/doctest.h>

#include <filesystem>

#include "engine/engine.h"
#include "tests/unit/worker/worker_pair.h"

using namespace tandem;
using namespace tandem::worker;

namespace {

constexpr char kModel[] = "models/smollm2-135m-instruct-q4_0.gguf";

Config llama_config(const std::string& transport) {
  Config config;
  config.model.path = kModel;
  config.model.name = "smol";
  config.model.context = 2048;
  config.prefill.slots = 2;
  config.decode.slots = 6;
  config.coupled.slots = 4;
  config.transfer.transport = transport;
  return config;
}

bool available() {
  if (std::filesystem::exists(kModel) && make_engine(llama_config("tcp"), 1, 1).ok()) return true;
  MESSAGE("skipped: this build has no libllama, or the model is not there");
  return false;
}

std::vector<link::Leg> legs() {
  std::vector<link::Leg> made;
  for (const int prompt : {1, 40, 257, 700}) {
    made.push_back(make_leg(static_cast<uint64_t>(prompt), prompt, 16, prompt == 40 ? 2 : 1));
    made.back().sampling.temperature = prompt == 700 ? 0 : 0.8;
    made.back().sampling.repetition_penalty = 1.1;
  }
  return made;
}

std::vector<std::vector<TokenId>> coupled_answers() {
  const auto worker = start_worker(llama_config("auto"), Role::kCoupled, "c0");
  TestRouter router;
  const auto session = router.connect(worker->address());
  std::vector<std::vector<TokenId>> answers;
  for (link::Leg& leg : legs()) {
    router.send(session, link::DecodeCommand{leg, true, ""});
    const Answer answer = router.wait_finished(leg.transfer, leg.choices);
    CHECK(answer.failures.empty());
    for (int i = 0; i < leg.choices; ++i) answers.push_back(answer.output(i));
  }
  CHECK(router.wait_idle(session));
  return answers;
}

}  // namespace

TEST_CASE("a real model answers through both workers as in one") {
  if (!available()) return;
  const auto expected = coupled_answers();
  for (const char* transport : {"tcp", "auto"}) {
    CAPTURE(transport);
    Pair pair(llama_config(transport));
    std::vector<std::pair<link::Leg, TransferId>> sent;
    for (const link::Leg& leg : legs()) sent.emplace_back(leg, pair.send(leg));
    size_t next = 0;
    for (const auto& [leg, transfer] : sent) {
      const Answer answer = pair.router.wait_finished(transfer, leg.choices);
      for (const auto& failure : answer.failures) MESSAGE(failure.message);
      REQUIRE(answer.failures.empty());
      for (int i = 0; i < leg.choices; ++i) CHECK(answer.output(i) == expected.at(next++));
    }
    CHECK(pair.wait_idle());
  }
}

TEST_CASE("a real prompt is cancelled within its chunk") {
  if (!available()) return;
  Pair pair(llama_config("tcp"));
  const TransferId transfer = pair.send(make_leg(1, 2000, 16));
  REQUIRE(pair.router.wait_event(transfer, "prefill_start").has_event("prefill_start"));
  pair.cancel(transfer);
  CHECK(pair.wait_idle());
  CHECK(pair.router.wait_finished(pair.send(make_leg(1, 20, 4))).failures.empty());
}

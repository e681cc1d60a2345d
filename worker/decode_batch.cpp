#include "worker/decode_batch.h"

#include <algorithm>
#include <unordered_map>

#include "common/log.h"
#include "scheduler/step_planner.h"

namespace tandem::worker {
namespace {

// Steps are alike: one in so many is reported as a sample, the first ones too.
constexpr uint64_t kStepsPerSample = 8;

}  // namespace

DecodeBatch::DecodeBatch(const WorkContext& context, DecodeLegs& legs, FailLeg fail)
    : context_(context), legs_(legs), fail_(std::move(fail)) {}

bool DecodeBatch::router_reads(DecodeLeg& leg, TimePoint now) {
  if (leg.router->queued_bytes() <= context_.config.link.send_queue_bytes / 2) {
    leg.paused_since = TimePoint{};
    return true;
  }
  if (leg.paused_since == TimePoint{}) leg.paused_since = now;
  paused_ = true;
  return false;
}

std::vector<DecodeBatch::Row> DecodeBatch::collect() {
  const TimePoint now = context_.clock.now();
  std::vector<Row> rows;
  std::vector<DecodeLeg*> slow;
  paused_ = false;
  for (DecodeLeg& leg : legs_) {
    if (leg.state != DecodeLeg::State::kRunning) continue;
    if (!router_reads(leg, now)) {
      if (now - leg.paused_since > context_.config.worker.slow_router) slow.push_back(&leg);
      continue;
    }
    for (size_t i = 0; i < leg.choices.size(); ++i) {
      if (!leg.choices[i].done) rows.push_back({&leg, &leg.choices[i], static_cast<int>(i)});
    }
  }
  for (DecodeLeg* leg : slow) {
    fail_(*leg, {ErrorCode::kResourceExhausted, "the router does not read its tokens"});
  }
  // libllama splits a batch whose sequence ids do not ascend.
  std::sort(rows.begin(), rows.end(), [](const Row& left, const Row& right) {
    return *left.choice->sequence < *right.choice->sequence;
  });
  return rows;
}

bool DecodeBatch::step() {
  const std::vector<Row> rows = collect();
  if (rows.empty()) {
    context_.pacer.stepped({}, 0, 0);
    return false;
  }
  std::vector<DecodeInput> inputs;
  inputs.reserve(rows.size());
  for (const Row& row : rows) {
    inputs.push_back({*row.choice->sequence, row.choice->token, row.choice->position});
  }
  const Clock& clock = context_.clock;
  const TimePoint before = clock.now();
  const Status status = context_.engine.decode(inputs);
  if (!status.ok()) {
    log_error("event=decode_failed worker={} sequences={} reason={}", context_.name, rows.size(),
              tandem::quoted(status.message()));
    DecodeLeg* last = nullptr;
    std::vector<DecodeLeg*> touched;
    for (const Row& row : rows) touched.push_back(row.leg);
    std::sort(touched.begin(), touched.end());
    for (DecodeLeg* leg : touched) {
      if (std::exchange(last, leg) != leg) fail_(*leg, status.with_context("decode"));
    }
    return true;
  }
  int64_t context_tokens = 0;
  for (const Row& row : rows) context_tokens += row.choice->position + 1;
  sample(rows);
  measure(static_cast<int>(rows.size()), context_tokens, clock.now() - before);
  return true;
}

void DecodeBatch::measure(int sequences, int64_t context_tokens, Duration busy) {
  const double ms = to_ms(busy);
  context_.report.count_step(sequences, busy);
  step_ms_.add(ms);
  if (steps_++ % kStepsPerSample == 0) {
    context_.report.sample({0, 0, sequences, context_tokens, ms});
  }
  // How far each leg is ahead of its target, for chunks that want to run beside it.
  const TimePoint now = context_.clock.now();
  std::vector<double> slack_ms;
  double tightest_ms = 0;
  for (DecodeLeg& leg : legs_) {
    if (leg.state != DecodeLeg::State::kRunning || leg.paused_since != TimePoint{}) continue;
    const int64_t wished_us = leg.leg().tpot_slo_us;
    const double tpot_ms =
        wished_us > 0 ? static_cast<double>(wished_us) / 1e3 : to_ms(context_.config.slo.tpot);
    ++leg.steps;
    slack_ms.push_back(
        scheduler::tpot_slack_ms(leg.steps + 1, tpot_ms, to_ms(now - leg.joined_at)));
    tightest_ms = slack_ms.size() == 1 ? tpot_ms : std::min(tightest_ms, tpot_ms);
  }
  context_.pacer.stepped(slack_ms, tightest_ms, ms);
}

void DecodeBatch::sample(const std::vector<Row>& rows) {
  Engine& engine = context_.engine;
  std::unordered_map<link::Session*, link::Tokens> frames;
  std::vector<std::pair<DecodeLeg*, Status>> failed;
  for (const Row& row : rows) {
    auto sampled = engine.sample(*row.choice->sequence, *row.choice->sampler);
    if (!sampled) {
      if (failed.empty() || failed.back().first != row.leg) {
        failed.emplace_back(row.leg, sampled.status().with_context("sampling"));
      }
      continue;
    }
    const link::Leg& wanted = row.leg->leg();
    row.choice->token = sampled->token;
    ++row.choice->position;
    sampled->finish = finish_of(*sampled, row.choice->sampler->emitted(), wanted.max_tokens,
                                row.choice->position, engine.model().context);
    const bool finished = sampled->finish != FinishReason::kNone;
    frames[row.leg->router.get()].entries.push_back(
        {wanted.transfer, row.index, wanted.sampling.logprobs >= 0, std::move(*sampled)});
    // Other rows' logits stay until the next step, whatever is closed.
    if (finished) close_choice(engine, *row.choice);
  }
  for (const auto& [router, tokens] : frames) {
    static_cast<void>(router->send(link::FrameKind::kTokens, tokens.encode()));
  }
  for (const auto& [leg, status] : failed) fail_(*leg, status);
}

}  // namespace tandem::worker

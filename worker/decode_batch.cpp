#include "worker/decode_batch.h"

#include <algorithm>
#include <unordered_map>

#include "common/log.h"

namespace tandem::worker {
namespace {

// A router that has not read for so long loses the legs that wait for it.
constexpr auto kPausedMax = std::chrono::seconds(10);

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
      if (now - leg.paused_since > kPausedMax) slow.push_back(&leg);
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
  if (rows.empty()) return false;
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
  sample(rows);
  const Duration busy = clock.now() - before;
  context_.report.count_step(static_cast<int>(rows.size()), busy);
  step_ms_.add(to_ms(busy));
  return true;
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

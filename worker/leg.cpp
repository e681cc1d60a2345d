#include "worker/leg.h"

#include <algorithm>

#include "common/log.h"

namespace tandem::worker {

Status check_leg(const link::Leg& leg, const ModelInfo& model, int sequences_max) {
  const auto refuse = [](std::string message) {
    return Status(ErrorCode::kInvalidArgument, std::move(message));
  };
  const auto known = [&](TokenId token) { return token >= 0 && token < model.vocab; };
  if (leg.tokens.empty() || leg.prompt_count < 1) return refuse("no prompt");
  if (leg.tokens.size() > static_cast<size_t>(model.context)) {
    return refuse("prompt of " + std::to_string(leg.tokens.size()) + " tokens, the context holds " +
                  std::to_string(model.context));
  }
  if (!std::all_of(leg.tokens.begin(), leg.tokens.end(), known)) {
    return refuse("a token is not of the model's vocabulary");
  }
  if (leg.choices > sequences_max) {
    return refuse(std::to_string(leg.choices) + " choices, this worker has " +
                  std::to_string(sequences_max) + " slots");
  }
  const SamplingParams& sampling = leg.sampling;
  if (!std::all_of(sampling.stop_tokens.begin(), sampling.stop_tokens.end(), known) ||
      !std::all_of(sampling.logit_bias.begin(), sampling.logit_bias.end(),
                   [&](const auto& bias) { return known(bias.first); })) {
    return refuse("a stop token or biased token is not of the model's vocabulary");
  }
  return {};
}

TimePoint leg_deadline(const link::Leg& leg, TimePoint now, Duration otherwise) {
  return now + (leg.deadline_ms > 0 ? std::chrono::milliseconds(leg.deadline_ms) : otherwise);
}

void send_event(link::Session& router, TransferId transfer, std::string_view name) {
  link::LegEvent event;
  event.transfer = transfer;
  event.name = name;
  event.at_us = SystemClock::get().wall_us();
  static_cast<void>(router.send(link::FrameKind::kLegEvent, event.encode()));
}

void send_failed(link::Session& router, const link::Leg& leg, std::string_view worker,
                 const Status& reason) {
  log_info("event=leg_failed request={} worker={} transfer={:016x} code={} reason={}", leg.request,
           worker, leg.transfer.value, error_code_name(reason.code()),
           tandem::quoted(reason.message()));
  link::LegFailed failed;
  failed.transfer = leg.transfer;
  failed.code = reason.code();
  failed.message = reason.message();
  failed.retryable = reason.code() != ErrorCode::kInvalidArgument;
  static_cast<void>(router.send(link::FrameKind::kLegFailed, failed.encode()));
}

Status transfer_failure(const Status& reason) {
  if (reason.code() != ErrorCode::kInvalidArgument) return reason;
  return {ErrorCode::kInternal, "transfer: " + reason.message()};
}

FinishReason finish_of(const SampledToken& sampled, int emitted, int max_tokens, int position,
                       int context) {
  if (sampled.finish != FinishReason::kNone) return sampled.finish;
  const bool full = emitted >= max_tokens || position >= context;
  return full ? FinishReason::kLength : FinishReason::kNone;
}

}  // namespace tandem::worker

#include "engine/choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "common/random.h"

namespace tandem {

namespace {

bool penalises(const SamplingParams& params) {
  return params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0 ||
         params.presence_penalty != 0.0;
}

Status check(const SamplingParams& params) {
  const auto bad = [](const char* what) { return Status(ErrorCode::kInvalidArgument, what); };
  if (!(params.temperature >= 0) || std::isinf(params.temperature)) {
    return bad("temperature must be finite and not negative");
  }
  if (!(params.top_p >= 0 && params.top_p <= 1)) return bad("top_p must be within 0 and 1");
  if (!(params.min_p >= 0 && params.min_p <= 1)) return bad("min_p must be within 0 and 1");
  if (!(params.repetition_penalty > 0) || std::isinf(params.repetition_penalty)) {
    return bad("repetition_penalty must be finite and above 0");
  }
  if (!std::isfinite(params.frequency_penalty) || !std::isfinite(params.presence_penalty)) {
    return bad("penalties must be finite");
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (std::isnan(bias)) return bad("logit_bias must be a number");
  }
  return {};
}

}  // namespace

bool VocabFacts::is_end(TokenId token) const {
  return std::binary_search(end_tokens.begin(), end_tokens.end(), token);
}

Result<std::unique_ptr<Choice>> Choice::make(const SamplingParams& params, const VocabFacts& vocab,
                                             std::span<const TokenId> history, int prompt_count) {
  TANDEM_RETURN_IF_ERROR(check(params));
  if (prompt_count < 0 || static_cast<size_t>(prompt_count) > history.size()) {
    return Status(ErrorCode::kInvalidArgument, "the prompt is longer than the history");
  }
  const auto outside = [&](TokenId token) { return token < 0 || token >= vocab.size; };
  if (std::any_of(history.begin(), history.end(), outside)) {
    return Status(ErrorCode::kInvalidArgument, "the history holds a token outside the vocabulary");
  }
  std::unique_ptr<Choice> choice(new Choice(params, vocab));
  for (const auto& [token, bias] : params.logit_bias) {
    if (outside(token)) {
      return Status(ErrorCode::kInvalidArgument, "logit_bias names a token outside the vocabulary");
    }
    choice->bias_[token] += bias;
  }
  if (penalises(params)) {
    for (const TokenId token : history.first(static_cast<size_t>(prompt_count))) {
      ++choice->counts_[token].all;
    }
  }
  for (const TokenId token : history.subspan(static_cast<size_t>(prompt_count)))
    choice->accept(token);
  return choice;
}

void Choice::accept(TokenId token) {
  ++emitted_;
  if (!penalises(params_)) return;
  Counts& counts = counts_[token];
  ++counts.all;
  ++counts.output;
}

float Choice::adjusted(TokenId token, float logit) const {
  if (suppressed(token)) return -std::numeric_limits<float>::infinity();
  if (const auto found = counts_.find(token); found != counts_.end()) {
    const Counts& counts = found->second;
    const auto repetition = static_cast<float>(params_.repetition_penalty);
    logit = logit > 0 ? logit / repetition : logit * repetition;
    if (counts.output > 0) {
      logit -=
          static_cast<float>(counts.output * params_.frequency_penalty + params_.presence_penalty);
    }
  }
  if (const auto found = bias_.find(token); found != bias_.end()) logit += found->second;
  return logit;
}

void Choice::for_each_adjusted(const std::function<void(TokenId)>& visit) const {
  for (const auto& [token, counts] : counts_) visit(token);
  const auto seen = [this](TokenId token) { return counts_.contains(token); };
  for (const auto& [token, bias] : bias_) {
    if (!seen(token)) visit(token);
  }
  if (emitted_ >= params_.min_tokens) return;
  const auto also_seen = [&](TokenId token) { return seen(token) || bias_.contains(token); };
  for (const TokenId token : vocab_.end_tokens) {
    if (!also_seen(token)) visit(token);
  }
  std::vector<TokenId> stops = params_.stop_tokens;
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  for (const TokenId token : stops) {
    if (!also_seen(token) && !vocab_.is_end(token) && token >= 0 && token < vocab_.size)
      visit(token);
  }
}

bool Choice::plain() const {
  return counts_.empty() && bias_.empty() && emitted_ >= params_.min_tokens;
}

FinishReason Choice::finish_of(TokenId token) const {
  if (is_stop(token)) return FinishReason::kStopToken;
  if (!params_.ignore_eos && vocab_.is_end(token)) return FinishReason::kEndOfText;
  return FinishReason::kNone;
}

double Choice::next_uniform() const {
  return counter_uniform(params_.seed, static_cast<uint64_t>(emitted_));
}

bool Choice::suppressed(TokenId token) const {
  return emitted_ < params_.min_tokens && (vocab_.is_end(token) || is_stop(token));
}

bool Choice::is_stop(TokenId token) const {
  return std::find(params_.stop_tokens.begin(), params_.stop_tokens.end(), token) !=
         params_.stop_tokens.end();
}

}  // namespace tandem

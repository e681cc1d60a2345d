#include "router/openai/text_assembler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace tandem::openai {
namespace {

constexpr float kLogprobFloor = -9999.0f;

// Also turns NaN into the floor.
float finite_logprob(float value) { return value >= kLogprobFloor ? value : kLogprobFloor; }

}  // namespace

AssemblerOptions AssemblerOptions::from(const CompletionRequest& request, int max_tokens) {
  AssemblerOptions options;
  options.stop = request.stop;
  options.include_stop = request.include_stop_str_in_output;
  options.skip_special = request.skip_special_tokens;
  options.min_tokens = request.sampling.min_tokens;
  options.max_tokens = max_tokens;
  options.logprobs = request.logprobs;
  options.token_ids = request.return_token_ids;
  return options;
}

void TextDelta::append(TextDelta&& next) {
  text += next.text;
  token_ids.insert(token_ids.end(), next.token_ids.begin(), next.token_ids.end());
  logprobs.insert(logprobs.end(), std::make_move_iterator(next.logprobs.begin()),
                  std::make_move_iterator(next.logprobs.end()));
  broken_off = broken_off || next.broken_off;
  if (next.finished()) {
    finish = next.finish;
    stop_reason = std::move(next.stop_reason);
  }
}

TextAssembler::TextAssembler(const Tokenizer& tokenizer, AssemblerOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)), matcher_(options_.stop) {}

TextDelta TextAssembler::push(const SampledToken& sampled) {
  TextDelta delta;
  if (finished_) return delta;
  ++token_count_;

  const bool ends =
      sampled.finish == FinishReason::kEndOfText || sampled.finish == FinishReason::kStopToken;
  std::string shown;
  if (!ends || options_.include_stop)
    shown = tokenizer_.piece(sampled.token, !options_.skip_special);

  std::string fresh;
  if (!shown.empty()) code_points_ += decoder_.settle(shown.front(), fresh);
  const size_t offset = code_points_;
  code_points_ += decoder_.feed(shown, fresh);
  const size_t before = held_.size();
  held_ += fresh;
  note_token(sampled, shown.empty(), offset);

  const bool armed = token_count_ >= options_.min_tokens;
  for (size_t i = before; i < held_.size(); ++i) {
    const int stop = matcher_.feed(held_[i], armed);
    if (stop < 0) continue;
    const std::string& text = matcher_.stop(stop);
    const size_t kept = options_.include_stop ? i + 1 : i + 1 - text.size();
    code_points_ -= count_code_points(std::string_view(held_).substr(kept));
    held_.resize(kept);
    delta.stop_reason = text;
    ended_by_text_ = sampled.finish == FinishReason::kNone;
    end(Finish::kStop, delta);
    return delta;
  }

  if (ends) {
    if (sampled.finish == FinishReason::kStopToken) delta.stop_reason = sampled.token;
    code_points_ += decoder_.finish(held_);
    end(Finish::kStop, delta);
  } else if (sampled.finish == FinishReason::kLength ||
             (options_.max_tokens > 0 && token_count_ >= options_.max_tokens)) {
    code_points_ += decoder_.finish(held_);
    end(Finish::kLength, delta);
  } else {
    release(held_.size() - matcher_.held(), delta);
  }
  return delta;
}

TextDelta TextAssembler::flush() {
  TextDelta delta;
  if (finished_) return delta;
  code_points_ += decoder_.finish(held_);
  end(Finish::kNone, delta);
  delta.broken_off = true;
  return delta;
}

void TextAssembler::note_token(const SampledToken& sampled, bool hidden, size_t offset) {
  if (options_.logprobs < 0 && !options_.token_ids) return;
  Waiting waiting;
  // A token that leaves a code point unfinished is out when that code point is.
  waiting.end = text_out_ + held_.size() + (decoder_.waiting() > 0 ? 1 : 0);
  waiting.entry.token = sampled.token;
  if (options_.logprobs >= 0) {
    waiting.entry.logprob = finite_logprob(sampled.logprob);
    waiting.entry.bytes = tokenizer_.piece(sampled.token, true);
    waiting.entry.hidden = hidden;
    waiting.entry.text_offset = offset;
    const size_t wanted = static_cast<size_t>(options_.logprobs);
    for (const TokenLogprob& top : sampled.top) {
      if (waiting.entry.top.size() == wanted) break;
      waiting.entry.top.push_back(
          {top.token, finite_logprob(top.logprob), tokenizer_.piece(top.token, true)});
    }
  }
  waiting_.push_back(std::move(waiting));
}

void TextAssembler::release(size_t bytes, TextDelta& delta) {
  delta.text.append(held_, 0, bytes);
  held_.erase(0, bytes);
  text_out_ += bytes;
  while (!waiting_.empty() && waiting_.front().end <= text_out_) release_token(delta);
}

void TextAssembler::release_token(TextDelta& delta) {
  Waiting& front = waiting_.front();
  if (options_.token_ids) delta.token_ids.push_back(front.entry.token);
  if (options_.logprobs >= 0) delta.logprobs.push_back(std::move(front.entry));
  waiting_.pop_front();
}

void TextAssembler::end(Finish finish, TextDelta& delta) {
  finished_ = true;
  delta.finish = finish;
  const size_t first = delta.logprobs.size();
  release(held_.size(), delta);
  while (!waiting_.empty()) release_token(delta);
  // Tokens whose text a stop string cut away stand at the end of what is left.
  for (size_t i = first; i < delta.logprobs.size(); ++i) {
    LogprobEntry& entry = delta.logprobs[i];
    entry.text_offset = std::min(entry.text_offset, code_points_);
  }
}

}  // namespace tandem::openai

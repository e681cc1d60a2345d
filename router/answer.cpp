#include "router/answer.h"

#include <algorithm>

namespace tandem::router {

Answer::Answer(Parts parts) : parts_(std::move(parts)) {
  const openai::CompletionRequest& request = parts_.prepared.request;
  for (size_t prompt = 0; prompt < parts_.prepared.prompts.size(); ++prompt) {
    const Prompt& source = parts_.prepared.prompts[prompt];
    usage_.prompt_tokens += static_cast<int64_t>(source.tokens.size());
    for (int i = 0; i < request.n; ++i) {
      const int index = static_cast<int>(prompt);
      choices_.push_back(Choice{
          .prompt = index,
          .seed = choice_seed(parts_.seed, index, i),
          .assembler = openai::TextAssembler(
              parts_.tokenizer, openai::AssemblerOptions::from(request, source.max_tokens))});
    }
  }
  cached_.resize(parts_.prepared.prompts.size(), -1);
  open_ = size();
  if (request.stream)
    stream_.emplace(parts_.meta, size());
  else
    body_.emplace(parts_.meta, size());
}

void Answer::took_prompt(int prompt, int cached_tokens) {
  int& known = cached_[static_cast<size_t>(prompt)];
  if (known >= 0) return;  // A resumed prompt is cached for another reason
  known = std::max(0, cached_tokens);
  usage_.cached_tokens += known;
  parts_.metrics.cached_tokens.add(known);
}

void Answer::push(int index, const SampledToken& sampled, TimePoint now) {
  Choice& choice = this->choice(index);
  if (choice.assembler.finished()) return;
  if (!any_token()) parts_.metrics.ttft.observe(to_seconds(now - parts_.received));
  if (!choice.emitted.empty()) parts_.metrics.itl.observe(to_seconds(now - choice.last_token));
  choice.last_token = now;
  choice.emitted.push_back(sampled.token);
  const int before = choice.assembler.token_count();
  openai::TextDelta delta = choice.assembler.push(sampled);
  const int counted = choice.assembler.token_count() - before;
  usage_.completion_tokens += counted;
  parts_.metrics.completion_tokens.add(counted);
  parts_.metrics.completion_tokens_alias.add(counted);
  if (delta.finished()) {
    --open_;
    parts_.metrics.choice_finished(delta.finish == openai::Finish::kLength);
  }
  emit(index, std::move(delta));
}

void Answer::finish_empty(int prompt) {
  const int n = parts_.prepared.request.n;
  for (int index = prompt * n; index < (prompt + 1) * n; ++index) {
    --open_;
    emit(index, openai::TextDelta{.finish = openai::Finish::kLength});
  }
}

void Answer::start(int index) {
  Choice& choice = this->choice(index);
  if (choice.started) return;
  choice.started = true;
  const Prompt& prompt = parts_.prepared.prompts[static_cast<size_t>(choice.prompt)];
  const openai::ChoiceStart start{.echo = prompt.echo, .prompt_token_ids = prompt.tokens};
  if (stream_)
    frames_ += stream_->start(index, start, usage_);
  else
    body_->start(index, start);
}

void Answer::emit(int index, openai::TextDelta delta) {
  start(index);
  if (delta.empty()) return;
  if (stream_)
    frames_ += stream_->delta(index, std::move(delta), usage_);
  else
    body_->delta(index, std::move(delta));
}

std::string Answer::last_frames() { return take_frames() + stream_->finish(usage_); }

std::string Answer::error_frames(const openai::ApiError& error) {
  for (int index = 0; index < size(); ++index)
    if (choice(index).started && !finished(index)) emit(index, choice(index).assembler.flush());
  return take_frames() + openai::StreamRenderer::error(error);
}

}  // namespace tandem::router

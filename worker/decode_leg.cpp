#include "worker/decode_leg.h"

namespace tandem::worker {

Status open_choices(Engine& engine, DecodeLeg& leg) {
  for (size_t i = 0; i < leg.choices.size(); ++i) {
    DecodeChoice& choice = leg.choices[i];
    if (choice.sequence || choice.done) continue;
    const auto sequence = engine.open();
    if (!sequence) return sequence.status();
    choice.sequence = *sequence;
    SamplingParams params = leg.leg().sampling;
    params.seed = leg.leg().seeds[i];
    auto sampler = engine.make_sampler(params, leg.leg().tokens, leg.leg().prompt_count);
    if (!sampler) return sampler.status();
    choice.sampler = std::move(*sampler);
  }
  return {};
}

void close_choice(Engine& engine, DecodeChoice& choice) {
  choice.done = true;
  choice.sampler.reset();
  if (choice.sequence) engine.close(*std::exchange(choice.sequence, std::nullopt));
}

void accept_first(Engine& engine, DecodeLeg& leg, const std::vector<SampledToken>& first,
                  TimePoint now) {
  for (size_t i = 0; i < leg.choices.size(); ++i) {
    DecodeChoice& choice = leg.choices[i];
    if (choice.done) continue;  // Cancelled while the rows came.
    choice.token = first[i].token;
    choice.position = leg.tokens();
    const FinishReason finish = finish_of(first[i], choice.sampler->emitted(), leg.leg().max_tokens,
                                          choice.position, engine.model().context);
    if (finish != FinishReason::kNone) close_choice(engine, choice);
  }
  leg.state = DecodeLeg::State::kRunning;
  leg.joined_at = now;
}

}  // namespace tandem::worker

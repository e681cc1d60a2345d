#include "worker/local_prompt.h"

#include <algorithm>

namespace tandem::worker {

LocalPrompt::LocalPrompt(const WorkContext& context, DecodeLegs& legs, FailLeg fail)
    : context_(context), legs_(legs), fail_(std::move(fail)) {}

DecodeLeg* LocalPrompt::next() {
  const auto leg = std::find_if(legs_.begin(), legs_.end(), [](const DecodeLeg& candidate) {
    return candidate.state == DecodeLeg::State::kPrompt;
  });
  return leg == legs_.end() ? nullptr : &*leg;
}

bool LocalPrompt::advance() {
  held_until_ = TimePoint::max();
  DecodeLeg* leg = next();
  if (!leg) return false;
  Status status = leg->grid.empty() ? start(*leg) : Status();
  if (status.ok()) {
    const TimePoint now = context_.clock.now();
    const TimePoint start = context_.pacer.start_of(leg->grid[leg->next_chunk], now);
    if (start > now) {
      held_until_ = start;
      return false;
    }
    status = run_chunk(*leg);
  }
  if (!status.ok()) fail_(*leg, status);
  return next() != nullptr;
}

Status LocalPrompt::start(DecodeLeg& leg) {
  TANDEM_RETURN_IF_ERROR(open_choices(context_.engine, leg));
  const ModelInfo& model = context_.engine.model();
  const int prompt = leg.leg().prompt_count;
  leg.grid = chunk_grid(prompt, leg.tokens() - prompt, model.chunk_tokens, model.exact_batch_max);
  leg.started_us = context_.clock.wall_us();
  send_event(*leg.router, leg.leg().transfer, "prefill_start");
  return {};
}

Status LocalPrompt::run_chunk(DecodeLeg& leg) {
  const Clock& clock = context_.clock;
  context_.abort_switch.begin(leg.leg().transfer, leg.router.get(), leg.deadline);
  if (!context_.inbox.empty()) {
    context_.abort_switch.end();
    return {};
  }
  const Chunk chunk = leg.grid[leg.next_chunk];
  const bool last = leg.next_chunk + 1 == leg.grid.size();
  const auto computing = std::find_if(leg.choices.begin(), leg.choices.end(),
                                      [](const DecodeChoice& choice) { return !choice.done; });
  const auto tokens =
      std::span(leg.leg().tokens)
          .subspan(static_cast<size_t>(chunk.first), static_cast<size_t>(chunk.count));
  const TimePoint before = clock.now();
  const Status status =
      context_.engine.prefill(*computing->sequence, tokens, chunk.first, last, nullptr);
  const Duration busy = clock.now() - before;
  context_.abort_switch.end();
  if (status.code() == ErrorCode::kCancelled) {
    // The reason is in the inbox, or the deadline has passed.
    leg.state = DecodeLeg::State::kStopped;
    return {};
  }
  TANDEM_RETURN_IF_ERROR(status.with_context("prefill"));
  context_.report.count_prompt(chunk, busy);
  context_.pacer.computed(chunk, busy);
  us_per_token_.add(to_seconds(busy) * 1e6 / chunk.count);
  ++leg.next_chunk;
  // Sampling first: it needs the logits that copying may disturb.
  if (!last) return copy_rows(leg, chunk);
  return finish(leg);
}

Status LocalPrompt::copy_rows(DecodeLeg& leg, const Chunk& chunk) {
  Engine& engine = context_.engine;
  std::vector<SeqId> sequences;  // The first has the rows
  for (const DecodeChoice& choice : leg.choices) {
    if (!choice.done) sequences.push_back(*choice.sequence);
  }
  if (sequences.size() < 2) return {};
  const auto others = std::span(sequences).subspan(1);
  for (const SeqId sequence : others) {
    for (int first = chunk.first; first < chunk.first + chunk.count;) {
      const int count = std::min(engine.reserve_slice(), chunk.first + chunk.count - first);
      TANDEM_RETURN_IF_ERROR(engine.reserve(sequence, first, count));
      first += count;
    }
  }
  const auto& layers = engine.kv_layout().layers;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
      rows_.resize(size_t{layers[layer].row_bytes(part)} * static_cast<size_t>(chunk.count));
      const int index = static_cast<int>(layer);
      TANDEM_RETURN_IF_ERROR(
          engine.export_rows(sequences[0], index, part, chunk.first, chunk.count, rows_));
      for (const SeqId sequence : others) {
        TANDEM_RETURN_IF_ERROR(
            engine.import_rows(sequence, index, part, chunk.first, chunk.count, rows_));
      }
    }
  }
  return {};
}

Status LocalPrompt::finish(DecodeLeg& leg) {
  const auto computed = std::find_if(leg.choices.begin(), leg.choices.end(),
                                     [](const DecodeChoice& choice) { return !choice.done; });
  link::PrefillDone done;
  done.transfer = leg.leg().transfer;
  done.computed_tokens = leg.tokens();
  done.started_us = leg.started_us;
  done.ended_us = context_.clock.wall_us();
  for (DecodeChoice& choice : leg.choices) {
    SampledToken first;
    if (!choice.done) {  // Else cancelled meanwhile: its place is kept, its token means nothing.
      auto sampled = context_.engine.sample(*computed->sequence, *choice.sampler);
      if (!sampled) return sampled.status().with_context("sampling");
      first = std::move(*sampled);
      first.finish = finish_of(first, choice.sampler->emitted(), leg.leg().max_tokens, leg.tokens(),
                               context_.engine.model().context);
    }
    done.first.push_back(std::move(first));
  }
  TANDEM_RETURN_IF_ERROR(copy_rows(leg, leg.grid.back()));
  static_cast<void>(leg.router->send(link::FrameKind::kPrefillDone, done.encode()));
  accept_first(context_.engine, leg, done.first, context_.clock.now());
  send_event(*leg.router, leg.leg().transfer, "joined");
  return {};
}

}  // namespace tandem::worker

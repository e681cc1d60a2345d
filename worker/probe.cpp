#include "worker/probe.h"

#include <algorithm>

#include "engine/chunk_grid.h"
#include "scheduler/cost_model.h"

namespace tandem::worker {
namespace {

constexpr int kBatchMost = 4;
constexpr int kSteps = 2;  // The first of a kind is slower: buffers are touched

std::vector<link::StepSample> configured(const Config& config) {
  const auto costs = scheduler::CostParameters::from(config.sim);
  const int chunk = config.engine.chunk_tokens;
  std::vector<link::StepSample> samples;
  for (const int first : {0, chunk, 4 * chunk}) {
    samples.push_back({first, chunk, 0, 0, costs.prefill_ms(first, chunk)});
  }
  samples.push_back({0, kChunkTokensMin, 0, 0, costs.prefill_ms(0, kChunkTokensMin)});
  for (const int batch : {1, 4, 16}) {
    for (const int context : {chunk, 8 * chunk}) {
      const int64_t all = int64_t{batch} * context;
      samples.push_back({0, 0, batch, all, costs.decode_ms(batch, static_cast<double>(all))});
    }
  }
  return samples;
}

class Probe {
 public:
  Probe(Engine& engine, const Clock& clock) : engine_(engine), clock_(clock) {}
  ~Probe() {
    for (const SeqId sequence : sequences_) engine_.close(sequence);
  }

  Status chunk(size_t index, int first, int count) {
    std::vector<TokenId> tokens;
    for (int i = first; i < first + count; ++i) tokens.push_back(token(i));
    const TimePoint before = clock_.now();
    TANDEM_RETURN_IF_ERROR(
        engine_.prefill(sequences_[index], tokens, first, true, nullptr).with_context("probe"));
    samples.push_back({first, count, 0, 0, to_ms(clock_.now() - before)});
    return {};
  }

  // Requires: the first `batch` sequences hold `length` positions.
  Status step(int batch, int length) {
    std::vector<DecodeInput> inputs;
    for (int i = 0; i < batch; ++i) {
      inputs.push_back({sequences_[static_cast<size_t>(i)], token(length + i), length});
    }
    const TimePoint before = clock_.now();
    TANDEM_RETURN_IF_ERROR(engine_.decode(inputs).with_context("probe"));
    const double ms = to_ms(clock_.now() - before);
    samples.push_back({0, 0, batch, int64_t{batch} * (length + 1), ms});
    return {};
  }

  Status open() {
    const auto sequence = engine_.open();
    if (sequence) sequences_.push_back(*sequence);
    return sequence.status();
  }

  std::vector<link::StepSample> samples;

 private:
  TokenId token(int position) const { return position * 37 % engine_.model().vocab; }

  Engine& engine_;
  const Clock& clock_;
  std::vector<SeqId> sequences_;
};

}  // namespace

Result<std::vector<link::StepSample>> probe_engine(Engine& engine, const Config& config,
                                                   const Clock& clock) {
  if (config.model.engine == "sim") return configured(config);
  const ModelInfo& model = engine.model();
  const int batch = std::min(kBatchMost, engine.sequences_max());
  Probe probe(engine, clock);
  for (int i = 0; i < batch; ++i) {
    TANDEM_RETURN_IF_ERROR(probe.open());
    TANDEM_RETURN_IF_ERROR(probe.chunk(static_cast<size_t>(i), 0, kChunkTokensMin));
  }
  int length = kChunkTokensMin;
  for (int i = 0; i < kSteps && length < model.context; ++i, ++length) {
    TANDEM_RETURN_IF_ERROR(probe.step(batch, length));
  }
  for (int i = 0; i < kSteps && length < model.context; ++i, ++length) {
    TANDEM_RETURN_IF_ERROR(probe.step(1, length));
  }
  if (length + model.chunk_tokens <= model.context) {
    TANDEM_RETURN_IF_ERROR(probe.chunk(0, length, model.chunk_tokens));
  }
  return std::move(probe.samples);
}

}  // namespace tandem::worker

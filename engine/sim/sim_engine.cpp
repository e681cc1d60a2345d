#include "engine/sim/sim_engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "common/clock.h"
#include "common/random.h"
#include "engine/choice.h"
#include "engine/chunk_grid.h"
#include "engine/digest.h"
#include "engine/sim/sim_rows.h"
#include "engine/sim/sim_sampling.h"
#include "engine/sim/sim_tokenizer.h"

namespace tandem {

namespace {

constexpr uint64_t kChainSalt = 0x636861696e;
constexpr int kSimExactBatchMax = 63;
constexpr int kSimReserveSlice = 1024;

// What the next token depends on, carried from position to position.
struct Progress {
  uint64_t chain = 0;  // Hash over the tokens, as the last position's rows hold it
  uint64_t state = 0;  // Hash over every position's chain, and over every wrong row

  void step(uint64_t next_chain) {
    chain = next_chain;
    state = counter_random(state, chain);
  }
  static uint64_t next_chain(uint64_t chain, TokenId token) {
    return counter_random(chain ^ kChainSalt, static_cast<uint64_t>(token));
  }
};

struct SimSequence {
  bool open = false;
  bool mapped = false;
  bool broken = false;  // A chunk was aborted: close() is all that is left
  bool has_logits = false;
  int length = 0;  // Positions that exist
  int known = 0;   // Of those, how many `progress` covers; the rest was imported
  Progress progress;
  SimRows rows;
};

// Blocks a thread until a time or until told to stop.
class Pause {
 public:
  // False when stopped before `deadline`.
  bool until(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_until(lock, deadline, [this] { return stopped_; });
  }
  // The same, but nothing stops it.
  void fully_until(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [] { return false; });
  }
  void set_stopped(bool stopped) {
    {
      std::lock_guard lock(mutex_);
      stopped_ = stopped;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
};

Duration milliseconds(double ms) { return Duration(static_cast<int64_t>(ms * 1e6)); }

class SimEngine final : public Engine {
 public:
  SimEngine(const Config& config, int slots, int threads)
      : source_(config),
        config_(config.sim),
        threads_(threads),
        sequences_(static_cast<size_t>(slots)) {
    const auto layers = static_cast<uint64_t>(std::max(config_.layers, 1));
    const auto bytes = static_cast<uint64_t>(std::max<int64_t>(config_.kv_bytes_per_token, 1));
    // Whole words, one at least; the layout tells everybody the true size.
    const uint64_t words = std::max<uint64_t>(1, (bytes / (2 * layers) + 7) / 8);
    shape_ = {static_cast<int>(layers), static_cast<uint32_t>(words * 8), config.model.context};
    layout_.element_type = "sim";
    layout_.layers.assign(layers, {shape_.row_bytes, shape_.row_bytes, 0});
    vocab_ = {sim_vocab(config_), {kSimEnd, kSimTurnEnd}};

    model_.name = config.model.name.empty() ? "sim" : config.model.name;
    Digest digest("sim_model");
    digest.add(static_cast<uint64_t>(vocab_.size));
    digest.add(layout_.digest());
    model_.digest = digest.hex();
    model_.tokenizer_digest = sim_tokenizer_digest(config_);
    model_.build = "sim 1";
    model_.context = shape_.context;
    model_.vocab = vocab_.size;
    model_.chunk_tokens = config.engine.chunk_tokens;
    model_.exact_batch_max = kSimExactBatchMax;
  }

  const ModelInfo& model() const override { return model_; }
  const KvLayout& kv_layout() const override { return layout_; }
  int sequences_max() const override { return static_cast<int>(sequences_.size()); }
  int threads() const override { return threads_; }

  Status resize(int slots, int threads) override {
    const bool open = std::any_of(sequences_.begin(), sequences_.end(),
                                  [](const SimSequence& sequence) { return sequence.open; });
    TANDEM_CHECK(!open, "resize() with open sequences");
    sequences_ = std::vector<SimSequence>(static_cast<size_t>(slots));
    threads_ = threads;
    return {};
  }
  Result<std::unique_ptr<Engine>> make_sibling(int slots, int threads) const override {
    return make_sim_engine(source_, slots, threads);
  }

  Result<SeqId> open() override {
    const auto free = std::find_if(sequences_.begin(), sequences_.end(),
                                   [](const SimSequence& sequence) { return !sequence.open; });
    if (free == sequences_.end()) {
      return Status(ErrorCode::kResourceExhausted, "all " + std::to_string(sequences_.size()) +
                                                       " sequences of the engine are in use");
    }
    if (!free->mapped) {
      Result<SimRows> rows = SimRows::make(shape_);
      if (!rows.ok()) return rows.status();
      free->rows = *std::move(rows);
      free->mapped = true;
    }
    free->open = true;
    return SeqId{static_cast<int32_t>(free - sequences_.begin())};
  }

  void close(SeqId id) override {
    SimSequence& sequence = at(id);
    sequence.rows.clear();
    SimRows rows = std::move(sequence.rows);
    sequence = SimSequence{};
    sequence.rows = std::move(rows);
    sequence.mapped = true;
  }

  Status prefill(SeqId id, std::span<const TokenId> tokens, int first, bool want_logits,
                 KvObserver* observer) override {
    SimSequence& sequence = at(id);
    TANDEM_RETURN_IF_ERROR(check_range(sequence, first, static_cast<int64_t>(tokens.size())));
    if (tokens.size() > static_cast<size_t>(chunk_batch_max(model_.chunk_tokens))) {
      return Status(ErrorCode::kInvalidArgument, "the chunk is longer than the engine's batch");
    }
    for (const TokenId token : tokens) TANDEM_RETURN_IF_ERROR(check_token(token));
    const double end = first + static_cast<double>(tokens.size());
    const Duration cost = milliseconds(
        config_.prefill_base_ms +
        1e-3 * (config_.prefill_per_token_us * static_cast<double>(tokens.size()) +
                config_.prefill_per_token2_us * (end * end - double{1} * first * first)));
    const TimePoint start = SystemClock::get().now();
    absorb(sequence);
    forget_logits();

    Progress progress = sequence.progress;
    std::vector<uint64_t> chains;
    for (const TokenId token : tokens) {
      progress.step(Progress::next_chain(progress.chain, token));
      chains.push_back(progress.chain);
    }
    const int count = static_cast<int>(tokens.size());
    for (int layer = 0; layer < shape_.layers; ++layer) {
      // A layer's rows exist when its share of the time has begun; its attention and the rest
      // follow.
      if (!pause_.until(start + cost * layer / shape_.layers)) {
        sequence.broken = true;
        return Status(ErrorCode::kCancelled, "the chunk was aborted");
      }
      sequence.rows.fill(layer, first, chains);
      if (observer != nullptr) {
        observer->on_layer({id, layer, first, count,
                            sequence.rows.rows(layer, KvPart::kKey, first, count),
                            sequence.rows.rows(layer, KvPart::kValue, first, count)});
      }
    }
    if (!pause_.until(start + cost)) {
      sequence.broken = true;
      return Status(ErrorCode::kCancelled, "the chunk was aborted");
    }
    sequence.progress = progress;
    sequence.length = sequence.known = first + count;
    sequence.has_logits = want_logits;
    return {};
  }

  Status decode(std::span<const DecodeInput> inputs) override {
    const TimePoint start = SystemClock::get().now();
    std::vector<bool> seen(sequences_.size());
    int64_t contexts = 0;
    for (const DecodeInput& input : inputs) {
      TANDEM_RETURN_IF_ERROR(check_range(at(input.sequence), input.position, 1));
      TANDEM_RETURN_IF_ERROR(check_token(input.token));
      if (seen[static_cast<size_t>(input.sequence.value)]) {
        return Status(ErrorCode::kInvalidArgument, "a sequence is twice in one decode step");
      }
      seen[static_cast<size_t>(input.sequence.value)] = true;
      contexts += input.position + 1;
    }
    if (inputs.empty()) return {};
    forget_logits();
    for (const DecodeInput& input : inputs) {
      SimSequence& sequence = at(input.sequence);
      absorb(sequence);
      const uint64_t chain = Progress::next_chain(sequence.progress.chain, input.token);
      for (int layer = 0; layer < shape_.layers; ++layer) {
        sequence.rows.fill(layer, input.position, std::span(&chain, 1));
      }
      sequence.progress.step(chain);
      sequence.length = sequence.known = input.position + 1;
      sequence.has_logits = true;
    }
    pause_.fully_until(
        start + milliseconds(config_.decode_base_ms +
                             config_.decode_per_sequence_ms * static_cast<double>(inputs.size()) +
                             1e-3 * config_.decode_per_context_us * static_cast<double>(contexts)));
    return {};
  }

  Status reserve(SeqId id, int first, int count) override {
    SimSequence& sequence = at(id);
    TANDEM_RETURN_IF_ERROR(check_range(sequence, first, count));
    sequence.length = first + count;
    forget_logits();
    return {};
  }

  int reserve_slice() const override { return kSimReserveSlice; }

  Status import_rows(SeqId id, int layer, KvPart part, int first, int count,
                     std::span<const std::byte> bytes) override {
    SimSequence& sequence = at(id);
    TANDEM_RETURN_IF_ERROR(check_rows(sequence, layer, first, count, bytes.size()));
    if (first < sequence.known) {
      return Status(ErrorCode::kFailedPrecondition, "rows of a position that is already in use");
    }
    std::memcpy(sequence.rows.rows(layer, part, first, count).data(), bytes.data(), bytes.size());
    return {};
  }

  Status export_rows(SeqId id, int layer, KvPart part, int first, int count,
                     std::span<std::byte> out) const override {
    const SimSequence& sequence = at(id);
    TANDEM_RETURN_IF_ERROR(check_rows(sequence, layer, first, count, out.size()));
    std::memcpy(out.data(), sequence.rows.rows(layer, part, first, count).data(), out.size());
    return {};
  }

  Result<std::unique_ptr<Sampler>> make_sampler(const SamplingParams& params,
                                                std::span<const TokenId> history,
                                                int prompt_count) override {
    Result<std::unique_ptr<Choice>> choice = Choice::make(params, vocab_, history, prompt_count);
    if (!choice.ok()) return choice.status();
    return std::unique_ptr<Sampler>(*std::move(choice));
  }

  Result<SampledToken> sample(SeqId id, Sampler& sampler) override {
    const SimSequence& sequence = at(id);
    if (!sequence.has_logits) {
      return Status(ErrorCode::kFailedPrecondition, "the sequence has no logits to sample from");
    }
    auto& choice = static_cast<Choice&>(sampler);
    SampledToken sampled = sim_sample(sequence.progress.state, vocab_.size, choice);
    choice.accept(sampled.token);
    return sampled;
  }

  void request_abort() override { pause_.set_stopped(true); }
  void clear_abort() override { pause_.set_stopped(false); }

 private:
  SimSequence& at(SeqId id) { return const_cast<SimSequence&>(std::as_const(*this).at(id)); }
  const SimSequence& at(SeqId id) const {
    TANDEM_CHECK(id.value >= 0 && static_cast<size_t>(id.value) < sequences_.size() &&
                     sequences_[static_cast<size_t>(id.value)].open,
                 "sequence " + std::to_string(id.value) + " is not open");
    return sequences_[static_cast<size_t>(id.value)];
  }

  Status check_range(const SimSequence& sequence, int first, int64_t count) const {
    if (sequence.broken) {
      return Status(ErrorCode::kFailedPrecondition,
                    "the sequence was aborted and can only be closed");
    }
    if (first != sequence.length || count < 1) {
      return Status(
          ErrorCode::kInvalidArgument,
          "positions must continue the sequence, which has " + std::to_string(sequence.length));
    }
    if (first + count > shape_.context) {
      return Status(ErrorCode::kResourceExhausted, "the sequence would outgrow its context");
    }
    return {};
  }

  Status check_token(TokenId token) const {
    if (token >= 0 && token < vocab_.size) return {};
    return Status(ErrorCode::kInvalidArgument, "a token outside the vocabulary");
  }

  Status check_rows(const SimSequence& sequence, int layer, int first, int count,
                    size_t bytes) const {
    if (layer < 0 || layer >= shape_.layers || first < 0 || count < 1 ||
        first > sequence.length - count) {
      return Status(ErrorCode::kInvalidArgument, "rows outside the sequence");
    }
    if (bytes != static_cast<size_t>(count) * shape_.row_bytes) {
      return Status(ErrorCode::kInvalidArgument, "the bytes do not fit the rows");
    }
    return {};
  }

  // Logits last until the next run, as with an engine that has one buffer for them.
  void forget_logits() {
    for (SimSequence& sequence : sequences_) sequence.has_logits = false;
  }

  // Takes imported positions into the sequence's progress. A wrong row changes everything that
  // follows.
  void absorb(SimSequence& sequence) const {
    for (; sequence.known < sequence.length; ++sequence.known) {
      const uint64_t chain = sequence.rows.chain_at(sequence.known);
      const int wrong = sequence.rows.mismatches(sequence.known, chain);
      sequence.progress.step(chain);
      if (wrong > 0)
        sequence.progress.state ^= counter_random(kChainSalt, static_cast<uint64_t>(wrong));
    }
  }

  const Config source_;  // For siblings
  const SimConfig config_;
  int threads_;
  SimRows::Shape shape_;
  KvLayout layout_;
  ModelInfo model_;
  VocabFacts vocab_;
  std::vector<SimSequence> sequences_;
  Pause pause_;
};

}  // namespace

Result<std::unique_ptr<Engine>> make_sim_engine(const Config& config, int slots, int threads) {
  return std::unique_ptr<Engine>(std::make_unique<SimEngine>(config, slots, threads));
}

}  // namespace tandem

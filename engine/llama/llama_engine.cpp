#include "engine/llama/llama_engine.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "engine/chunk_grid.h"
#include "engine/llama/llama_engine_factory.h"
#include "engine/llama/llama_sampling.h"
#include "engine/llama/self_check.h"
#include "engine/llama/vocab.h"

namespace tandem {

namespace {
// Tokens whose cells are taken in one go: 0.3 to 0.6 ms with the models at hand.
constexpr int kReserveSlice = 256;
}  // namespace

LlamaEngine::LlamaEngine(const Config& config) : config_(config) {
  info_.name = config.model.name.empty() ? std::filesystem::path(config.model.path).stem().string()
                                         : config.model.name;
  info_.build = std::string("libllama ") + llama_version();
  info_.context = config.model.context;
  info_.chunk_tokens = config.engine.chunk_tokens;
}

Result<std::unique_ptr<LlamaEngine>> LlamaEngine::start(const Config& config, int slots,
                                                        int threads) {
  const TimePoint begin = SystemClock::get().now();
  std::unique_ptr<LlamaEngine> engine(new LlamaEngine(config));
  TANDEM_RETURN_IF_ERROR(engine->load(config.model.path));
  TANDEM_RETURN_IF_ERROR(engine->make_context(slots, threads));
  const TimePoint loaded = SystemClock::get().now();
  TANDEM_RETURN_IF_ERROR(engine->self_check());
  log_info(
      "event=engine_ready engine=llama model={} build={} slots={} context={} threads={} "
      "exact_batch_max={} load_ms={:.0f} self_check_ms={:.0f}",
      tandem::quoted(engine->info_.name), tandem::quoted(engine->info_.build), slots,
      engine->info_.context, threads, engine->info_.exact_batch_max, to_ms(loaded - begin),
      to_ms(SystemClock::get().now() - loaded));
  return engine;
}

Status LlamaEngine::load(const std::string& path) {
  Result<LoadedModel> loaded = load_llama_model(path);
  if (!loaded.ok()) return loaded.status();
  model_ = std::move(loaded->model);
  info_.digest = loaded->digest;
  const llama_vocab* vocab = llama_model_get_vocab(model_.get());
  vocab_ = {llama_vocab_n_tokens(vocab), end_tokens(vocab)};
  info_.vocab = vocab_.size;
  info_.tokenizer_digest = vocab_digest(vocab);
  return {};
}

Status LlamaEngine::make_context(int slots, int threads) {
  context_.reset();  // Two caches at a time may be more than there is memory for
  threads_ = threads;
  batch_max_ = std::max(chunk_batch_max(info_.chunk_tokens), slots);
  sequences_ = std::vector<Sequence>(static_cast<size_t>(slots));
  // With several threads a lone token runs with a companion behind it, see submit().
  const ContextShape shape{.slots = slots,
                           .context = info_.context + (threads > 1 ? 1 : 0),
                           .batch_max = batch_max_,
                           .threads = threads};
  Result<LlamaContext> context =
      make_llama_context(model_.get(), shape, &watch_, &LlamaEngine::should_abort, this);
  if (!context.ok()) return context.status();
  context_ = *std::move(context);
  return learn_cache();
}

// How a batch is divided depends on the threads: whoever changes them checks again.
Status LlamaEngine::self_check() {
  info_.exact_batch_max = batch_max_;  // Until the check knows better
  const Result<int> exact = run_self_check(*this, config_.engine.self_check_tokens);
  if (!exact.ok()) return exact.status().with_context("engine self-check");
  info_.exact_batch_max = *exact;
  return {};
}

Status LlamaEngine::resize(int slots, int threads) {
  TANDEM_CHECK(std::none_of(sequences_.begin(), sequences_.end(),
                            [](const Sequence& sequence) { return sequence.open; }),
               "resize() with open sequences");
  const int old_slots = sequences_max(), old_threads = threads_, old_exact = info_.exact_batch_max;
  if (slots == old_slots && threads == old_threads) return {};
  Status status = make_context(slots, threads);
  if (status.ok() && threads != old_threads) status = self_check();
  if (status.ok()) return {};
  // What there was room for a moment ago; without it nothing can run here at all.
  const Status restored = make_context(old_slots, old_threads);
  TANDEM_CHECK(restored.ok(), "the engine's context is lost: " + restored.message());
  info_.exact_batch_max = old_exact;
  return status;
}

Result<std::unique_ptr<Engine>> LlamaEngine::make_sibling(int slots, int threads) const {
  std::unique_ptr<LlamaEngine> sibling(new LlamaEngine(config_));
  sibling->model_ = model_;
  sibling->info_ = info_;
  sibling->vocab_ = vocab_;
  TANDEM_RETURN_IF_ERROR(sibling->make_context(slots, threads));
  if (threads != threads_) TANDEM_RETURN_IF_ERROR(sibling->self_check());
  return std::unique_ptr<Engine>(std::move(sibling));
}

Status LlamaEngine::learn_cache() {
  const Result<SeqId> sequence = open();
  if (!sequence.ok()) return sequence.status();
  const Row probe{*sequence, 0, 0, false};
  TANDEM_RETURN_IF_ERROR(run(std::span(&probe, 1), GraphWatch::Mode::kLearn));
  close(*sequence);
  Result<KvCache> cache = KvCache::make(watch_.layers(), 0);
  if (!cache.ok()) return cache.status();
  cache_ = *std::move(cache);

  // Which layers have the window? Those whose mask hides position 0 from the first token beyond it.
  const int window = llama_model_n_swa(model_.get());
  if (window <= 0 || window >= info_.context) return {};
  TANDEM_RETURN_IF_ERROR(open().status());
  for (int first = 0; first < window; first += kReserveSlice) {
    TANDEM_RETURN_IF_ERROR(reserve(*sequence, first, std::min(kReserveSlice, window - first)));
  }
  const Row beyond{*sequence, 0, window, false};
  TANDEM_RETURN_IF_ERROR(run(std::span(&beyond, 1), GraphWatch::Mode::kLearn));
  close(*sequence);
  cache = KvCache::make(watch_.layers(), window);
  if (!cache.ok()) return cache.status();
  cache_ = *std::move(cache);
  return {};
}

Result<SeqId> LlamaEngine::open() {
  const auto free = std::find_if(sequences_.begin(), sequences_.end(),
                                 [](const Sequence& sequence) { return !sequence.open; });
  if (free == sequences_.end()) {
    return Status(ErrorCode::kResourceExhausted, "all " + std::to_string(sequences_.size()) +
                                                     " sequences of the engine are in use");
  }
  free->open = true;
  return SeqId{static_cast<int32_t>(free - sequences_.begin())};
}

void LlamaEngine::close(SeqId sequence) {
  at(sequence) = Sequence{};
  llama_memory_seq_rm(llama_get_memory(context_.get()), sequence.value, -1, -1);
}

Status LlamaEngine::prefill(SeqId sequence, std::span<const TokenId> tokens, int first,
                            bool want_logits, KvObserver* observer) {
  TANDEM_RETURN_IF_ERROR(check_range(sequence, first, static_cast<int64_t>(tokens.size())));
  for (const TokenId token : tokens) TANDEM_RETURN_IF_ERROR(check_token(token));
  std::vector<Row> rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    rows.push_back(
        {sequence, tokens[i], first + static_cast<int>(i), want_logits && i + 1 == tokens.size()});
  }
  const int count = static_cast<int>(tokens.size());
  if (observer != nullptr) {
    watch_.set_on_layer([&](int layer) {
      observer->on_layer({sequence, layer, first, count,
                          cache_.rows(sequence, layer, KvPart::kKey, first, count),
                          cache_.rows(sequence, layer, KvPart::kValue, first, count)});
    });
  }
  abortable_ = true;
  const Status status =
      abort_requested_
          ? Status(ErrorCode::kCancelled, "the chunk was aborted")
          : run(rows, observer == nullptr ? GraphWatch::Mode::kRun : GraphWatch::Mode::kObserve);
  abortable_ = false;
  watch_.set_on_layer(nullptr);
  Sequence& state = at(sequence);
  if (!status.ok()) {
    state.broken = true;
    return status;
  }
  state.length = first + count;
  if (want_logits) state.logits = llama_get_logits_ith(context_.get(), count - 1);
  return {};
}

Status LlamaEngine::decode(std::span<const DecodeInput> inputs) {
  std::vector<DecodeInput> sorted(inputs.begin(), inputs.end());
  // libllama batches ascending neighbours at once and splits everything else.
  std::sort(sorted.begin(), sorted.end(), [](const DecodeInput& a, const DecodeInput& b) {
    return a.sequence.value < b.sequence.value;
  });
  for (size_t i = 0; i < sorted.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(check_range(sorted[i].sequence, sorted[i].position, 1));
    TANDEM_RETURN_IF_ERROR(check_token(sorted[i].token));
    if (i > 0 && sorted[i].sequence == sorted[i - 1].sequence) {
      return Status(ErrorCode::kInvalidArgument, "a sequence is twice in one decode step");
    }
  }
  const auto batch = static_cast<size_t>(info_.exact_batch_max);
  if (sorted.size() <= batch) return decode_batch(sorted, nullptr);
  const auto vocab = static_cast<size_t>(vocab_.size);
  kept_logits_.resize(sorted.size() * vocab);
  for (size_t begin = 0; begin < sorted.size(); begin += batch) {
    const size_t count = std::min(batch, sorted.size() - begin);
    TANDEM_RETURN_IF_ERROR(
        decode_batch(std::span(sorted).subspan(begin, count), kept_logits_.data() + begin * vocab));
  }
  // A later batch forgot the earlier ones' logits, but not their copies.
  for (size_t i = 0; i < sorted.size(); ++i) {
    at(sorted[i].sequence).logits = kept_logits_.data() + i * vocab;
  }
  return {};
}

Status LlamaEngine::decode_batch(std::span<const DecodeInput> sorted, float* keep_logits) {
  if (sorted.empty()) return {};
  std::vector<Row> rows;
  for (const DecodeInput& input : sorted) {
    rows.push_back({input.sequence, input.token, input.position, true});
  }
  if (Status status = run(rows, GraphWatch::Mode::kRun); !status.ok()) {
    for (const DecodeInput& input : sorted) at(input.sequence).broken = true;
    return status;
  }
  for (size_t i = 0; i < sorted.size(); ++i) {
    Sequence& state = at(sorted[i].sequence);
    state.length = sorted[i].position + 1;
    state.logits = llama_get_logits_ith(context_.get(), static_cast<int32_t>(i));
    if (keep_logits == nullptr) continue;
    const auto vocab = static_cast<size_t>(vocab_.size);
    std::copy_n(state.logits, vocab, keep_logits + i * vocab);
  }
  return {};
}

Status LlamaEngine::run(std::span<const Row> rows, GraphWatch::Mode mode) {
  if (rows.size() > static_cast<size_t>(batch_max_)) {
    return Status(ErrorCode::kInvalidArgument, "the batch is longer than the engine's");
  }
  for (Sequence& sequence : sequences_) sequence.logits = nullptr;
  // A lone token's attention is divided among the threads by context, any other batch's by row, and
  // the results differ. A companion at the next position, forgotten at once, makes every batch one
  // of the second kind.
  std::vector<Row> padded(rows.begin(), rows.end());
  const bool companion = threads_ > 1 && rows.size() == 1;
  if (companion) padded.push_back({rows[0].sequence, rows[0].token, rows[0].position + 1, false});

  std::vector<int64_t> cells;
  for (const Row& row : padded) cells.push_back(cache_.cell(row.sequence, row.position));
  watch_.begin(mode, std::move(cells));
  const int code = submit(padded);
  const Status watched = watch_.end();
  if (code == 2) return Status(ErrorCode::kCancelled, "the chunk was aborted");
  if (code != 0)
    return Status(ErrorCode::kInternal, "llama_decode failed: " + std::to_string(code));
  if (companion) {
    llama_memory_seq_rm(llama_get_memory(context_.get()), rows[0].sequence.value,
                        rows[0].position + 1, -1);
  }
  return watched;
}

int LlamaEngine::submit(std::span<const Row> rows) {
  const size_t count = rows.size();
  std::vector<llama_token> tokens(count);
  std::vector<llama_pos> positions(count);
  std::vector<int32_t> sequence_counts(count, 1);
  std::vector<llama_seq_id> sequences(count);
  std::vector<llama_seq_id*> sequence_lists(count);
  std::vector<int8_t> outputs(count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = rows[i].token;
    positions[i] = rows[i].position;
    sequences[i] = rows[i].sequence.value;
    sequence_lists[i] = &sequences[i];
    outputs[i] = rows[i].want_logits;
  }
  return llama_decode(context_.get(), {.n_tokens = static_cast<int32_t>(count),
                                       .token = tokens.data(),
                                       .embd = nullptr,
                                       .pos = positions.data(),
                                       .n_seq_id = sequence_counts.data(),
                                       .seq_id = sequence_lists.data(),
                                       .logits = outputs.data()});
}

Status LlamaEngine::reserve(SeqId sequence, int first, int count) {
  TANDEM_RETURN_IF_ERROR(check_range(sequence, first, count));
  const std::vector<Row> rows = [&] {
    std::vector<Row> made;
    for (int i = 0; i < count; ++i) made.push_back({sequence, 0, first + i, false});
    return made;
  }();
  if (Status status = run(rows, GraphWatch::Mode::kStop); !status.ok()) {
    at(sequence).broken = true;
    return status;
  }
  at(sequence).length = first + count;
  return {};
}

int LlamaEngine::reserve_slice() const { return std::min(kReserveSlice, batch_max_); }

Status LlamaEngine::import_rows(SeqId sequence, int layer, KvPart part, int first, int count,
                                std::span<const std::byte> bytes) {
  TANDEM_RETURN_IF_ERROR(check_rows(sequence, layer, part, first, count, bytes.size()));
  cache_.write(sequence, layer, part, first, bytes);
  return {};
}

Status LlamaEngine::export_rows(SeqId sequence, int layer, KvPart part, int first, int count,
                                std::span<std::byte> out) const {
  TANDEM_RETURN_IF_ERROR(check_rows(sequence, layer, part, first, count, out.size()));
  cache_.read(sequence, layer, part, first, out);
  return {};
}

Result<std::unique_ptr<Sampler>> LlamaEngine::make_sampler(const SamplingParams& params,
                                                           std::span<const TokenId> history,
                                                           int prompt_count) {
  Result<std::unique_ptr<Choice>> choice = Choice::make(params, vocab_, history, prompt_count);
  if (!choice.ok()) return choice.status();
  return std::unique_ptr<Sampler>(std::make_unique<LlamaChoice>(*std::move(choice)));
}

Result<SampledToken> LlamaEngine::sample(SeqId sequence, Sampler& sampler) {
  const std::span<const float> row = logits(sequence);
  if (row.empty()) {
    return Status(ErrorCode::kFailedPrecondition, "the sequence has no logits to sample from");
  }
  return static_cast<LlamaChoice&>(sampler).sample(row, scratch_);
}

std::span<const float> LlamaEngine::logits(SeqId sequence) const {
  const Sequence& state = at(sequence);
  if (state.logits == nullptr) return {};
  return {state.logits, static_cast<size_t>(vocab_.size)};
}

bool LlamaEngine::should_abort(void* engine) {
  const auto& self = *static_cast<const LlamaEngine*>(engine);
  return self.abortable_ && self.abort_requested_;
}

LlamaEngine::Sequence& LlamaEngine::at(SeqId sequence) {
  return const_cast<Sequence&>(std::as_const(*this).at(sequence));
}

const LlamaEngine::Sequence& LlamaEngine::at(SeqId sequence) const {
  TANDEM_CHECK(sequence.value >= 0 && sequence.value < sequences_max() &&
                   sequences_[static_cast<size_t>(sequence.value)].open,
               "sequence " + std::to_string(sequence.value) + " is not open");
  return sequences_[static_cast<size_t>(sequence.value)];
}

Status LlamaEngine::check_range(SeqId sequence, int first, int64_t count) const {
  const Sequence& state = at(sequence);
  if (state.broken) {
    return Status(ErrorCode::kFailedPrecondition,
                  "the sequence was aborted and can only be closed");
  }
  if (first != state.length || count < 1) {
    return Status(ErrorCode::kInvalidArgument, "positions must continue the sequence, which has " +
                                                   std::to_string(state.length));
  }
  if (first + count > info_.context) {
    return Status(ErrorCode::kResourceExhausted, "the sequence would outgrow its context");
  }
  return {};
}

Status LlamaEngine::check_token(TokenId token) const {
  if (token >= 0 && token < vocab_.size) return {};
  return Status(ErrorCode::kInvalidArgument, "a token outside the vocabulary");
}

Status LlamaEngine::check_rows(SeqId sequence, int layer, KvPart part, int first, int count,
                               size_t bytes) const {
  const Sequence& state = at(sequence);
  if (layer < 0 || layer >= cache_.layers() || first < 0 || count < 1 ||
      first > state.length - count) {
    return Status(ErrorCode::kInvalidArgument, "rows outside the sequence");
  }
  if (bytes != static_cast<size_t>(count) * cache_.row_bytes(layer, part)) {
    return Status(ErrorCode::kInvalidArgument, "the bytes do not fit the rows");
  }
  return {};
}

Result<std::unique_ptr<Engine>> make_llama_engine(const Config& config, int slots, int threads) {
  Result<std::unique_ptr<LlamaEngine>> engine = LlamaEngine::start(config, slots, threads);
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<Engine>(*std::move(engine));
}

}  // namespace tandem

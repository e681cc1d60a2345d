// The engine on libllama. Threads and shutdown: as Engine.
//
// How its promises are kept:
// - Every sequence has a stream of the cache of its own, and position p is cell p of it: checked on
// every run.
// - A run is one graph. Decode steps are cut at exact_batch_max, the largest batch whose results do
// not depend on
//   its size; the self-check finds it at start.
// - Rows are handed out, imported and exported where they lie.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "engine/choice.h"
#include "engine/engine.h"
#include "engine/llama/kv_cache.h"
#include "engine/llama/llama_model.h"

namespace tandem {

class LlamaEngine final : public Engine {
 public:
  // Loads, learns the cache's layout and checks itself; a failure says why it refuses to serve.
  static Result<std::unique_ptr<LlamaEngine>> start(const Config& config, int slots, int threads);
  LlamaEngine(const LlamaEngine&) = delete;
  LlamaEngine& operator=(const LlamaEngine&) = delete;

  const ModelInfo& model() const override { return info_; }
  const KvLayout& kv_layout() const override { return cache_.layout(); }
  int sequences_max() const override { return static_cast<int>(sequences_.size()); }
  int threads() const override { return threads_; }
  Status resize(int slots, int threads) override;
  Result<std::unique_ptr<Engine>> make_sibling(int slots, int threads) const override;
  Result<SeqId> open() override;
  void close(SeqId sequence) override;
  Status prefill(SeqId sequence, std::span<const TokenId> tokens, int first, bool want_logits,
                 KvObserver* observer) override;
  Status decode(std::span<const DecodeInput> inputs) override;
  Status reserve(SeqId sequence, int first, int count) override;
  int reserve_slice() const override;
  Status import_rows(SeqId sequence, int layer, KvPart part, int first, int count,
                     std::span<const std::byte> bytes) override;
  Status export_rows(SeqId sequence, int layer, KvPart part, int first, int count,
                     std::span<std::byte> out) const override;
  Result<std::unique_ptr<Sampler>> make_sampler(const SamplingParams& params,
                                                std::span<const TokenId> history,
                                                int prompt_count) override;
  Result<SampledToken> sample(SeqId sequence, Sampler& sampler) override;
  void request_abort() override { abort_requested_ = true; }
  void clear_abort() override { abort_requested_ = false; }

  // Raw logits of the last token run on `sequence`, over the vocabulary; empty when there are none.
  // Valid until the next run.
  std::span<const float> logits(SeqId sequence) const;

 private:
  struct Sequence {
    bool open = false;
    bool broken = false;  // A run failed inside: close() is all that is left
    int length = 0;
    const float* logits = nullptr;
  };
  // One token of a run.
  struct Row {
    SeqId sequence;
    TokenId token = 0;
    int position = 0;
    bool want_logits = false;
  };

  explicit LlamaEngine(const Config& config);
  Status load(const std::string& path);
  // A fresh context of this shape, instead of the one that is there.
  Status make_context(int slots, int threads);
  Status learn_cache();
  Status self_check();
  // Runs `rows` as one batch.
  Status run(std::span<const Row> rows, GraphWatch::Mode mode);
  int submit(std::span<const Row> rows);
  Status decode_batch(std::span<const DecodeInput> sorted, float* keep_logits);
  static bool should_abort(void* engine);

  Sequence& at(SeqId sequence);
  const Sequence& at(SeqId sequence) const;
  Status check_range(SeqId sequence, int first, int64_t count) const;
  Status check_token(TokenId token) const;
  Status check_rows(SeqId sequence, int layer, KvPart part, int first, int count,
                    size_t bytes) const;

  const Config config_;
  int threads_ = 1;
  int batch_max_ = 0;
  ModelInfo info_;
  VocabFacts vocab_;
  KvCache cache_;
  std::vector<Sequence> sequences_;
  std::vector<float> kept_logits_;  // Of a decode step that needed several batches
  std::vector<llama_token_data> scratch_;
  std::atomic<bool> abort_requested_ = false;
  std::atomic<bool> abortable_ = false;  // A prefill is running
  // The context calls into the watch and uses the model: it goes first.
  GraphWatch watch_;
  std::shared_ptr<llama_model> model_;  // Siblings share it; it is only read
  LlamaContext context_;
};

}  // namespace tandem

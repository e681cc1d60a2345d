// Engine: how a worker executes a model without knowing which library does it.
//
// One Engine belongs to one thread, its worker's engine thread; only request_abort() may be called
// from others. It holds `sequences_max` sequences of at most `context` tokens and their KV cache.
// Results are exact by construction: a prompt runs on the fixed chunk grid (see chunk_grid.h), one
// chunk a call, and a decode step never shares a batch with a chunk, so that a token depends on its
// sequence alone and never on what else the worker happens to run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/config.h"
#include "common/status.h"
#include "common/types.h"
#include "engine/sampling.h"

namespace tandem {

enum class KvPart : uint8_t { kKey = 0, kValue = 1 };

// The shape of one token's KV rows. Two workers exchange KV only when their digests are equal.
struct KvLayout {
  struct Layer {
    uint32_t key_row_bytes = 0;
    uint32_t value_row_bytes = 0;
    // Attention reaches back this many tokens; 0: all. Older rows of the layer need not be sent.
    int32_t window = 0;
    uint32_t row_bytes(KvPart part) const {
      return part == KvPart::kKey ? key_row_bytes : value_row_bytes;
    }
  };
  std::vector<Layer> layers;
  std::string element_type;  // "f16"

  uint64_t bytes_per_token() const;
  // Hex digest over everything above.
  std::string digest() const;
};

struct ModelInfo {
  std::string name;
  std::string digest;  // Of the weights and hyper-parameters
  std::string tokenizer_digest;
  std::string build;  // Library and version
  int context = 0;
  int vocab = 0;
  int chunk_tokens = 0;  // The grid in force
  // Batches of 1 to this many tokens give bit-identical results: emitted tokens are replayed in
  // chunks of at most this size. The start-up self-check proves it; 1 always holds.
  int exact_batch_max = 1;
};

// The rows that one layer of one chunk has just written, still in the cache.
struct LayerRows {
  SeqId sequence;
  int layer = 0;
  int first = 0;  // Position of the first row
  int count = 0;
  std::span<const std::byte> key;    // count * key_row_bytes; valid until the sequence is closed
  std::span<const std::byte> value;  // count * value_row_bytes; likewise
};

// Sees each layer as soon as its rows exist, before that layer's attention is computed. Runs on the
// engine thread inside prefill(); must not call back into the engine.
class KvObserver {
 public:
  virtual ~KvObserver() = default;
  virtual void on_layer(const LayerRows& rows) = 0;
};

struct DecodeInput {
  SeqId sequence;
  TokenId token = 0;
  int position = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const ModelInfo& model() const = 0;
  virtual const KvLayout& kv_layout() const = 0;
  virtual int sequences_max() const = 0;
  virtual int threads() const = 0;

  // Another number of sequences and threads; keeps the weights. On failure the engine is as before.
  // Requires: no sequence is open.
  virtual Status resize(int slots, int threads) = 0;
  // An engine on the same weights with sequences of its own, for a thread of its own.
  virtual Result<std::unique_ptr<Engine>> make_sibling(int slots, int threads) const = 0;

  // Takes the lowest free sequence id, which keeps running sequences dense: libllama splits a batch
  // whose ids have holes (docs/architecture.md). kResourceExhausted when none is free.
  virtual Result<SeqId> open() = 0;
  // Forgets the sequence's rows and frees its id. Requires: open.
  virtual void close(SeqId sequence) = 0;

  // Runs `tokens` at positions first, first + 1, ... as one batch. With `want_logits`, logits of
  // the last token are there for sample(). `observer` may be null. kCancelled after
  // request_abort(): the sequence then holds an unknown number of rows and can only be closed.
  // Requires: all positions below `first` are filled; tokens.size() fits chunk_batch_max().
  virtual Status prefill(SeqId sequence, std::span<const TokenId> tokens, int first,
                         bool want_logits, KvObserver* observer) = 0;
  // One token for each of several sequences, in one batch; logits of each are there for sample().
  // Requires: sequences differ; each position follows the sequence's last one.
  virtual Status decode(std::span<const DecodeInput> inputs) = 0;

  // Makes [first, first + count) of an open sequence's positions exist, with rows still to be
  // imported. Cheap enough to be sliced between decode steps (reserve_slice() tokens at most per
  // call). Requires: first is the sequence's length.
  virtual Status reserve(SeqId sequence, int first, int count) = 0;
  virtual int reserve_slice() const = 0;
  // Writes rows of one layer into reserved positions. `bytes` holds count rows.
  virtual Status import_rows(SeqId sequence, int layer, KvPart part, int first, int count,
                             std::span<const std::byte> bytes) = 0;
  // Copies rows out, for tests and self-checks.
  virtual Status export_rows(SeqId sequence, int layer, KvPart part, int first, int count,
                             std::span<std::byte> out) const = 0;

  // Sampler with its own history, for one choice of one request. `history`: prompt and tokens
  // emitted so far, in order; the first `prompt_count` of them are the prompt.
  virtual Result<std::unique_ptr<Sampler>> make_sampler(const SamplingParams& params,
                                                        std::span<const TokenId> history,
                                                        int prompt_count) = 0;
  // Draws the token that follows the last one run on `sequence`, and adds it to the sampler's
  // history. Logits are there until the next prefill(), decode() or reserve() of any sequence;
  // kFailedPrecondition without.
  virtual Result<SampledToken> sample(SeqId sequence, Sampler& sampler) = 0;

  // Stops a prefill() that is running, within a chunk. Any thread. Cleared by clear_abort().
  virtual void request_abort() = 0;
  virtual void clear_abort() = 0;
};

// Starts the engine that the configuration names, with `slots` sequences. Takes seconds: it loads
// weights and proves with a self-check that rows, layout and batch sizes are what this build
// expects.
Result<std::unique_ptr<Engine>> make_engine(const Config& config, int slots, int threads);

}  // namespace tandem

#include "engine/llama/self_check.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "common/random.h"
#include "engine/chunk_grid.h"
#include "engine/llama/llama_engine.h"

namespace tandem {

namespace {

constexpr int kExactMost = kChunkTokensMin - 1;  // Chunks from here on belong to the prompt grid
constexpr int kSearchMost = 16;  // Where the border is looked for when kExactMost is not exact
constexpr int kBatchMost = 16;   // Sequences in the batch that is compared with running alone
constexpr uint64_t kTokenSeed = 1;

// Rows of a range of positions, by layer and part.
using Rows = std::vector<std::vector<std::byte>>;
using Logits = std::vector<float>;

bool same(const Logits& a, std::span<const float> b) {
  return a.size() == b.size() && !b.empty() && std::memcmp(a.data(), b.data(), b.size_bytes()) == 0;
}

// Copies what it is shown at the time when it is shown.
class Recorder final : public KvObserver {
 public:
  void on_layer(const LayerRows& rows) override {
    seen.emplace_back(rows.key.begin(), rows.key.end());
    seen.emplace_back(rows.value.begin(), rows.value.end());
  }
  Rows seen;
};

class SelfCheck {
 public:
  SelfCheck(LlamaEngine& engine, int tokens)
      : engine_(engine),
        length_(std::min({tokens, engine.model().context - kChunkTokensMin,
                          chunk_batch_max(engine.model().chunk_tokens)})) {
    for (int i = 0; i < length_ + kChunkTokensMin; ++i) {
      const uint64_t draw = counter_random(kTokenSeed, static_cast<uint64_t>(i));
      tokens_.push_back(static_cast<TokenId>(draw % static_cast<uint64_t>(engine.model().vocab)));
    }
  }

  Result<int> run() {
    if (length_ < kChunkTokensMin) {
      return Status(ErrorCode::kInvalidArgument,
                    "model.context must be at least " + std::to_string(2 * kChunkTokensMin));
    }
    TANDEM_RETURN_IF_ERROR(check_hand_over());
    TANDEM_RETURN_IF_ERROR(find_exact_chunk());
    TANDEM_RETURN_IF_ERROR(find_exact_batch());
    return exact_;
  }

 private:
  // A prompt chunk, its rows, and the next token's logits in the sequence itself and in one that
  // only got the rows.
  Status check_hand_over() {
    const Result<SeqId> sequence = engine_.open();
    if (!sequence.ok()) return sequence.status();
    Recorder recorder;
    TANDEM_RETURN_IF_ERROR(engine_.prefill(*sequence, prompt(0, length_), 0, false, &recorder));
    TANDEM_RETURN_IF_ERROR(read_rows(*sequence, 0, length_, prefix_));
    if (recorder.seen != prefix_)
      return refuse("rows changed after their layer had been announced");
    TANDEM_RETURN_IF_ERROR(step(*sequence, length_));
    after_prefix_ = copy_logits(*sequence);
    engine_.close(*sequence);

    const Result<SeqId> second = restore(length_);
    if (!second.ok()) return second.status();
    TANDEM_RETURN_IF_ERROR(step(*second, length_));
    if (!same(after_prefix_, engine_.logits(*second))) {
      return refuse("a sequence with imported rows gives other logits than the one they came from");
    }
    engine_.close(*second);
    return {};
  }

  // The largest chunk whose rows and logits equal those of single tokens. Sizes of one numeric
  // regime are neighbours, so the largest is compared with pieces of growing size, one token first.
  Status find_exact_chunk() {
    Rows pieces, whole;
    Logits pieces_logits, whole_logits;
    std::vector<int> sizes;
    for (int size = 1, left = kExactMost; left > 0; left -= sizes.back(), size *= 2) {
      sizes.push_back(std::min(size, left));
    }
    TANDEM_RETURN_IF_ERROR(run_chunks(sizes, pieces, pieces_logits));
    TANDEM_RETURN_IF_ERROR(run_chunks({kExactMost}, whole, whole_logits));
    if (pieces == whole && same(pieces_logits, whole_logits)) {
      exact_ = kExactMost;
      return {};
    }
    exact_ = 1;
    for (int low = 2, high = kSearchMost; low <= high;) {
      const int middle = std::midpoint(low, high);
      TANDEM_RETURN_IF_ERROR(
          run_chunks(std::vector<int>(static_cast<size_t>(middle), 1), pieces, pieces_logits));
      TANDEM_RETURN_IF_ERROR(run_chunks({middle}, whole, whole_logits));
      if (pieces == whole && same(pieces_logits, whole_logits)) {
        exact_ = middle;
        low = middle + 1;
      } else {
        high = middle - 1;
      }
    }
    return {};
  }

  // Sequences of different lengths in one decode batch against each alone; halves exact_ until they
  // agree.
  Status find_exact_batch() {
    for (; exact_ > 1; exact_ /= 2) {
      const int count = std::min({engine_.sequences_max(), exact_, kBatchMost});
      if (count < 2) return {};
      Result<std::vector<Logits>> together = batch_logits(0, count);
      if (!together.ok()) return together.status();
      bool agree = together->front() == after_prefix_;
      for (const int i : {count / 2, count - 1}) {
        Result<std::vector<Logits>> alone = batch_logits(i, 1);
        if (!alone.ok()) return alone.status();
        agree = agree && same(alone->front(), (*together)[static_cast<size_t>(i)]);
      }
      if (agree) return {};
    }
    return {};
  }

  // Sequences that hold all but the last `first`, first + 1, ... prefix rows, and the next token on
  // each.
  Result<std::vector<Logits>> batch_logits(int first, int count) {
    std::vector<DecodeInput> inputs;
    for (int i = first; i < first + count; ++i) {
      const Result<SeqId> sequence = restore(length_ - i);
      if (!sequence.ok()) return sequence.status();
      inputs.push_back({*sequence, tokens_[static_cast<size_t>(length_)], length_ - i});
    }
    TANDEM_RETURN_IF_ERROR(engine_.decode(inputs));
    std::vector<Logits> logits;
    for (const DecodeInput& input : inputs) logits.push_back(copy_logits(input.sequence));
    for (const DecodeInput& input : inputs) engine_.close(input.sequence);
    return logits;
  }

  // Runs the tokens after the prefix in chunks of `sizes`; gives their rows and the last logits.
  Status run_chunks(const std::vector<int>& sizes, Rows& rows, Logits& logits) {
    const Result<SeqId> sequence = restore(length_);
    if (!sequence.ok()) return sequence.status();
    int at = length_;
    for (const int size : sizes) {
      TANDEM_RETURN_IF_ERROR(engine_.prefill(*sequence, prompt(at, size), at, true, nullptr));
      at += size;
    }
    logits = copy_logits(*sequence);
    TANDEM_RETURN_IF_ERROR(read_rows(*sequence, length_, at - length_, rows));
    engine_.close(*sequence);
    return {};
  }

  // A sequence whose first `length` rows are imported from the prefix.
  Result<SeqId> restore(int length) {
    const Result<SeqId> sequence = engine_.open();
    if (!sequence.ok()) return sequence.status();
    for (int first = 0; first < length; first += engine_.reserve_slice()) {
      const int count = std::min(engine_.reserve_slice(), length - first);
      TANDEM_RETURN_IF_ERROR(engine_.reserve(*sequence, first, count));
    }
    size_t index = 0;
    for (size_t layer = 0; layer < engine_.kv_layout().layers.size(); ++layer) {
      for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
        const size_t bytes =
            engine_.kv_layout().layers[layer].row_bytes(part) * static_cast<size_t>(length);
        TANDEM_RETURN_IF_ERROR(engine_.import_rows(*sequence, static_cast<int>(layer), part, 0,
                                                   length,
                                                   std::span(prefix_[index++]).first(bytes)));
      }
    }
    return sequence;
  }

  Status read_rows(SeqId sequence, int first, int count, Rows& rows) {
    rows.clear();
    for (size_t layer = 0; layer < engine_.kv_layout().layers.size(); ++layer) {
      for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
        const size_t bytes =
            engine_.kv_layout().layers[layer].row_bytes(part) * static_cast<size_t>(count);
        rows.emplace_back(bytes);
        TANDEM_RETURN_IF_ERROR(engine_.export_rows(sequence, static_cast<int>(layer), part, first,
                                                   count, rows.back()));
      }
    }
    return {};
  }

  Status step(SeqId sequence, int position) {
    const DecodeInput input{sequence, tokens_[static_cast<size_t>(position)], position};
    return engine_.decode(std::span(&input, 1));
  }
  Logits copy_logits(SeqId sequence) const {
    const std::span<const float> logits = engine_.logits(sequence);
    return {logits.begin(), logits.end()};
  }
  std::span<const TokenId> prompt(int first, int count) const {
    return std::span(tokens_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  }
  static Status refuse(const std::string& reason) {
    return Status(ErrorCode::kFailedPrecondition, reason);
  }

  LlamaEngine& engine_;
  const int length_;
  std::vector<TokenId> tokens_;
  Rows prefix_;
  Logits after_prefix_;
  int exact_ = 1;
};

}  // namespace

Result<int> run_self_check(LlamaEngine& engine, int tokens) {
  return SelfCheck(engine, tokens).run();
}

}  // namespace tandem

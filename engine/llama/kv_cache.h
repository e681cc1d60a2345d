// libllama's KV cache as rows: sequence s has stream s, position p has cell p, so a layer's rows of
// one sequence are contiguous. Tensors are learned once and live as long as the context. Engine
// thread only.
#pragma once

#include <span>
#include <vector>

#include "common/status.h"
#include "engine/engine.h"
#include "engine/llama/graph_watch.h"

namespace tandem {

class KvCache {
 public:
  KvCache() = default;
  // `window`: the model's sliding window, 0 for none. Layers whose mask hid position 0 from a token
  // beyond it have it.
  static Result<KvCache> make(const std::vector<GraphWatch::Layer>& layers, int window);

  const KvLayout& layout() const { return layout_; }
  int layers() const { return static_cast<int>(tensors_.size()); }
  int64_t cell(SeqId sequence, int position) const {
    return static_cast<int64_t>(sequence.value) * cells_ + position;
  }
  int64_t cells_per_sequence() const { return cells_; }
  uint32_t row_bytes(int layer, KvPart part) const {
    return layout_.layers[static_cast<size_t>(layer)].row_bytes(part);
  }

  // Requires, below: the positions exist. The rows where they lie.
  std::span<const std::byte> rows(SeqId sequence, int layer, KvPart part, int first,
                                  int count) const;
  void write(SeqId sequence, int layer, KvPart part, int first, std::span<const std::byte> bytes);
  void read(SeqId sequence, int layer, KvPart part, int first, std::span<std::byte> out) const;

 private:
  struct Tensors {
    ggml_tensor* key = nullptr;
    ggml_tensor* value = nullptr;
    ggml_tensor* of(KvPart part) const { return part == KvPart::kKey ? key : value; }
  };
  size_t offset(SeqId sequence, int layer, KvPart part, int position) const;

  std::vector<Tensors> tensors_;
  KvLayout layout_;
  int64_t cells_ = 0;
};

}  // namespace tandem

#include "engine/llama/kv_cache.h"

#include <string>

namespace tandem {

Result<KvCache> KvCache::make(const std::vector<GraphWatch::Layer>& layers, int window) {
  const auto refuse = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "the model's KV cache " + what);
  };
  if (layers.empty()) return refuse("has no layers");
  KvCache cache;
  cache.cells_ = layers.front().key->ne[1];
  const ggml_type type = layers.front().key->type;
  cache.layout_.element_type = ggml_type_name(type);
  for (const GraphWatch::Layer& layer : layers) {
    for (const ggml_tensor* tensor : {layer.key, layer.value}) {
      if (tensor->buffer == nullptr || !ggml_backend_buffer_is_host(tensor->buffer)) {
        return refuse("is not in host memory");
      }
      if (tensor->type != type || tensor->ne[1] != cache.cells_ || !ggml_is_contiguous(tensor)) {
        return refuse("is not made of equal contiguous rows: " + std::string(tensor->name));
      }
    }
    cache.tensors_.push_back({layer.key, layer.value});
    cache.layout_.layers.push_back({static_cast<uint32_t>(layer.key->nb[1]),
                                    static_cast<uint32_t>(layer.value->nb[1]),
                                    layer.masks_first ? window : 0});
  }
  return cache;
}

size_t KvCache::offset(SeqId sequence, int layer, KvPart part, int position) const {
  const ggml_tensor* tensor = tensors_[static_cast<size_t>(layer)].of(part);
  return static_cast<size_t>(sequence.value) * tensor->nb[2] +
         static_cast<size_t>(position) * tensor->nb[1];
}

std::span<const std::byte> KvCache::rows(SeqId sequence, int layer, KvPart part, int first,
                                         int count) const {
  const ggml_tensor* tensor = tensors_[static_cast<size_t>(layer)].of(part);
  const auto* base = static_cast<const std::byte*>(tensor->data);
  return {base + offset(sequence, layer, part, first), static_cast<size_t>(count) * tensor->nb[1]};
}

void KvCache::write(SeqId sequence, int layer, KvPart part, int first,
                    std::span<const std::byte> bytes) {
  ggml_backend_tensor_set(tensors_[static_cast<size_t>(layer)].of(part), bytes.data(),
                          offset(sequence, layer, part, first), bytes.size());
}

void KvCache::read(SeqId sequence, int layer, KvPart part, int first,
                   std::span<std::byte> out) const {
  ggml_backend_tensor_get(tensors_[static_cast<size_t>(layer)].of(part), out.data(),
                          offset(sequence, layer, part, first), out.size());
}

}  // namespace tandem

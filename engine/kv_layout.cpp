#include "engine/digest.h"
#include "engine/engine.h"

namespace tandem {

uint64_t KvLayout::bytes_per_token() const {
  uint64_t bytes = 0;
  for (const Layer& layer : layers) bytes += layer.key_row_bytes + layer.value_row_bytes;
  return bytes;
}

std::string KvLayout::digest() const {
  Digest digest("kv_layout");
  digest.add(element_type);
  digest.add(layers.size());
  for (const Layer& layer : layers) {
    digest.add(static_cast<uint64_t>(layer.key_row_bytes));
    digest.add(static_cast<uint64_t>(layer.value_row_bytes));
    digest.add(static_cast<uint64_t>(layer.window));
  }
  return digest.hex();
}

}  // namespace tandem

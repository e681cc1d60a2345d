// A GGUF file looked at without loading it: is it whole, what is in it, what names it.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"
#include "engine/llama/handles.h"

namespace tandem {

struct GgufFile {
  GgufContext file;
  GgmlContext tensors;  // Shapes and types, no data
  uint64_t bytes = 0;
};

// kNotFound, kInvalidArgument (not a GGUF file) or kDataLoss (shorter than its own index says),
// naming the file.
Result<GgufFile> open_gguf(const std::string& path);

// Names the model: its whole header, the file's size, and slices of its weights.
Result<std::string> gguf_digest(const std::string& path, const GgufFile& gguf);

}  // namespace tandem

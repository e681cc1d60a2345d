// libllama's objects as move-only values. No owner outlives the model that it came from.
#pragma once

#include <gguf.h>
#include <llama.h>

#include <memory>

namespace tandem {

struct LlamaDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
  void operator()(llama_context* context) const { llama_free(context); }
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
  void operator()(gguf_context* file) const { gguf_free(file); }
  void operator()(ggml_context* context) const { ggml_free(context); }
  void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
};

using LlamaModel = std::unique_ptr<llama_model, LlamaDeleter>;
using LlamaContext = std::unique_ptr<llama_context, LlamaDeleter>;
using LlamaSampler = std::unique_ptr<llama_sampler, LlamaDeleter>;
using GgufContext = std::unique_ptr<gguf_context, LlamaDeleter>;
using GgmlContext = std::unique_ptr<ggml_context, LlamaDeleter>;
using GgmlBuffer = std::unique_ptr<ggml_backend_buffer, LlamaDeleter>;

}  // namespace tandem

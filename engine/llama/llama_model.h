// A model and a context on it, with every setting that exactness depends on. See llama_model.cpp
// for the reasons.
#pragma once

#include <string>

#include "common/status.h"
#include "engine/llama/graph_watch.h"
#include "engine/llama/handles.h"

namespace tandem {

struct LoadedModel {
  LlamaModel model;
  std::string digest;
};
Result<LoadedModel> load_llama_model(const std::string& path);

struct ContextShape {
  int slots = 0;
  int context = 0;    // Tokens per sequence
  int batch_max = 0;  // Tokens in one run
  int threads = 1;
};
// `watch` sees every graph. `abort` may be called from libllama's compute threads.
Result<LlamaContext> make_llama_context(llama_model* model, const ContextShape& shape,
                                        GraphWatch* watch, ggml_abort_callback abort,
                                        void* abort_data);

}  // namespace tandem

#include "engine/llama/llama_model.h"

#include <algorithm>

#include "engine/llama/gguf_file.h"
#include "engine/llama/llama_runtime.h"
#include "engine/llama/weight_placement.h"

namespace tandem {

namespace {
constexpr int kCellAlignment = 256;  // libllama rounds a sequence's cells up to this
}

Result<LoadedModel> load_llama_model(const std::string& path) {
  start_llama_runtime();
  Result<GgufFile> file = open_gguf(path);
  if (!file.ok()) return file.status();
  Result<std::string> digest = gguf_digest(path, *file);
  if (!digest.ok()) return digest.status();
  const WeightPlacement placement(*file);
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.load_mode = LLAMA_LOAD_MODE_MMAP;
  params.use_extra_bufts = false;  // Not libllama's choice: weight_placement.h
  params.tensor_buft_overrides = placement.overrides();
  LoadedModel loaded{LlamaModel(llama_model_load_from_file(path.c_str(), params)),
                     *std::move(digest)};
  if (loaded.model == nullptr) {
    return Status(ErrorCode::kInvalidArgument,
                  "model file " + path +
                      " cannot be loaded: this build does not know its architecture, "
                      "or it is damaged (log.level debug shows libllama's reasons)");
  }
  llama_model* model = loaded.model.get();
  if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model) ||
      llama_model_is_diffusion(model) || llama_model_has_encoder(model) ||
      !llama_model_has_decoder(model)) {
    return Status(ErrorCode::kFailedPrecondition,
                  "model file " + path + " holds no plain decoder with a KV cache");
  }
  return loaded;
}

Result<LlamaContext> make_llama_context(llama_model* model, const ContextShape& shape,
                                        GraphWatch* watch, ggml_abort_callback abort,
                                        void* abort_data) {
  const int cells = (shape.context + kCellAlignment - 1) / kCellAlignment * kCellAlignment;
  llama_context_params params = llama_context_default_params();
  params.n_seq_max = static_cast<uint32_t>(shape.slots);
  params.n_ctx = static_cast<uint32_t>(cells) * params.n_seq_max;
  // One run is one graph: a split would change both the numbers and what an observer sees.
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(std::max(shape.batch_max, shape.slots));
  params.n_outputs_max = static_cast<uint32_t>(std::max(shape.slots, 2));
  params.n_threads = params.n_threads_batch = shape.threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;  // Value rows stay rows
  params.type_k = params.type_v = GGML_TYPE_F16;
  params.swa_full = true;     // A window's cells are not reused: position p keeps cell p
  params.kv_unified = false;  // One stream per sequence: its rows are contiguous, its cost its own
  params.offload_kqv = params.op_offload = false;
  params.no_perf = true;
  params.cb_eval = GraphWatch::callback;
  params.cb_eval_user_data = watch;
  params.abort_callback = abort;
  params.abort_callback_data = abort_data;
  LlamaContext context(llama_init_from_model(model, params));
  if (context == nullptr) {
    return Status(ErrorCode::kResourceExhausted,
                  "libllama cannot make a context of " + std::to_string(shape.slots) + " x " +
                      std::to_string(cells) +
                      " tokens for this model (memory, or no flash attention)");
  }
  if (static_cast<int>(llama_n_ctx_seq(context.get())) < shape.context ||
      llama_n_ubatch(context.get()) < params.n_ubatch) {
    return Status(ErrorCode::kInternal, "libllama made a smaller context than asked for");
  }
  return context;
}

}  // namespace tandem

#include "engine/llama/weight_placement.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>

#include <cctype>
#include <cstring>
#include <map>
#include <string_view>

namespace tandem {

namespace {

constexpr std::string_view kRepackName = "CPU_REPACK";

ggml_backend_buffer_type_t repack_buffer_type(ggml_backend_dev_t cpu) {
  const auto list =
      reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
  if (list == nullptr) return nullptr;
  for (ggml_backend_buffer_type_t* type = list(cpu); type != nullptr && *type != nullptr; ++type) {
    if (kRepackName == ggml_backend_buft_name(*type)) return *type;
  }
  return nullptr;
}

// Can the CPU multiply by `weight` if it lies in `buffer`?
bool multiplies(ggml_backend_dev_t cpu, ggml_backend_buffer_t buffer, ggml_tensor* weight) {
  const ggml_init_params params{
      .mem_size = 4 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true};
  const GgmlContext context(ggml_init(params));
  ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, weight->ne[0], 64);
  weight->buffer = buffer;
  const bool supported =
      ggml_backend_dev_supports_op(cpu, ggml_mul_mat(context.get(), weight, input));
  weight->buffer = nullptr;
  return supported;
}

// "blk.7.attn_q.weight" -> "^blk\.[0-9]+\.attn_q\.weight$": one pattern for all blocks.
std::string pattern_of(std::string_view name) {
  std::string pattern = "^";
  bool in_number = false;
  for (const char letter : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(letter)) != 0;
    if (digit && !in_number) pattern += "[0-9]+";
    in_number = digit;
    if (digit) continue;
    if (letter == '.') pattern += '\\';
    pattern += letter;
  }
  return pattern + "$";
}

}  // namespace

WeightPlacement::WeightPlacement(const GgufFile& gguf) {
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  ggml_backend_buffer_type_t repack = cpu == nullptr ? nullptr : repack_buffer_type(cpu);
  std::map<std::string, bool> groups;  // Pattern -> all its tensors can be placed
  if (repack != nullptr) {
    const GgmlBuffer buffer(ggml_backend_buft_alloc_buffer(repack, 0));
    for (ggml_tensor* tensor = ggml_get_first_tensor(gguf.tensors.get()); tensor != nullptr;
         tensor = ggml_get_next_tensor(gguf.tensors.get(), tensor)) {
      // Embeddings are looked up by row, which a repacked tensor cannot give.
      const bool matrix = tensor->type == GGML_TYPE_Q4_0 && ggml_n_dims(tensor) == 2 &&
                          std::strncmp(tensor->name, "blk.", 4) == 0;
      const bool placed = matrix && multiplies(cpu, buffer.get(), tensor);
      const auto [group, inserted] = groups.emplace(pattern_of(tensor->name), placed);
      if (!placed) group->second = false;
    }
  }
  for (const auto& [pattern, placed] : groups) {
    if (!placed) continue;
    patterns_.push_back(pattern);
    overrides_.push_back({patterns_.back().c_str(), repack});
  }
  overrides_.push_back({nullptr, nullptr});
}

}  // namespace tandem

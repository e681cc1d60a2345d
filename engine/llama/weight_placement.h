// Where the weights go, which decides how fast and how exact the matrix products are.
//
// libggml-cpu repacks weights into layouts for particular instructions. Its own choice is not ours:
// the AMX layout takes another path for one row than for many, and dies on virtual machines that
// show AMX without letting it run; the repacked K-quants differ between batches of 3 and 4 rows.
// The repacked Q4_0 products are bit-identical for every batch and a quarter faster on prompts than
// plain ones. So Q4_0 matrices are placed there by name, and everything else stays as it is in the
// file.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "engine/llama/gguf_file.h"

namespace tandem {

// Lives as long as the loading of the model.
class WeightPlacement {
 public:
  explicit WeightPlacement(const GgufFile& gguf);
  WeightPlacement(const WeightPlacement&) = delete;
  WeightPlacement& operator=(const WeightPlacement&) = delete;

  const llama_model_tensor_buft_override* overrides() const { return overrides_.data(); }

 private:
  std::deque<std::string> patterns_;  // Stable addresses
  std::vector<llama_model_tensor_buft_override> overrides_;
};

}  // namespace tandem

// Looks into libllama's graph while it runs, through the scheduling callback: where each layer's
// cache lies, when its rows are written, and whether they go where we think.
//
// The cache write of a layer is two SET_ROWS nodes, into `cache_k_l<n>` and then into
// `cache_v_l<n>`. Asking for the second stops the graph once per (batch, layer), after both writes
// and before that layer's attention. Engine thread only; the context that calls back must not
// outlive it.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/status.h"

namespace tandem {

class GraphWatch {
 public:
  enum class Mode {
    kRun,      // Only check that the first layer's rows go to the expected cells
    kLearn,    // Record the cache tensors
    kObserve,  // Stop at every layer
    kStop,     // End the graph at its first node: cells are taken, nothing is written
  };
  struct Layer {
    ggml_tensor* key = nullptr;
    ggml_tensor* value = nullptr;
    bool masks_first = false;  // Was position 0 out of the last token's reach?
  };

  // What libllama wants as cb_eval, with a GraphWatch as its user data.
  static bool callback(ggml_tensor* node, bool ask, void* watch);

  // Starts a run. `cells`: where its rows must go, in order.
  void begin(Mode mode, std::vector<int64_t> cells);
  // Ends it: did every layer write where it should?
  Status end();
  // kObserve: called with each layer's index, once its rows are written.
  void set_on_layer(std::function<void(int)> on_layer) { on_layer_ = std::move(on_layer); }

  // kLearn: the layers that have a cache of their own, in the order in which they ran.
  const std::vector<Layer>& layers() const { return layers_; }

 private:
  bool ask(ggml_tensor* node);
  void learn(ggml_tensor* node);
  void learn_mask(const ggml_tensor* attention);
  void check_cells(const ggml_tensor* write, bool first_layer);
  void fail(const std::string& what);

  Mode mode_ = Mode::kRun;
  std::vector<int64_t> cells_;
  size_t cells_seen_ = 0;  // By the first layer
  int layers_seen_ = 0;
  std::string failure_;
  std::function<void(int)> on_layer_;
  std::vector<Layer> layers_;
  std::unordered_map<const ggml_tensor*, int> layer_of_value_;
  ggml_tensor* pending_key_ = nullptr;  // kLearn: a key write whose value write is still to come
};

}  // namespace tandem

#include "engine/llama/graph_watch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace tandem {

namespace {

bool writes_cache(const ggml_tensor* node, const char* prefix) {
  return node->op == GGML_OP_SET_ROWS && node->view_src != nullptr &&
         std::strncmp(node->view_src->name, prefix, std::strlen(prefix)) == 0;
}
bool writes_key(const ggml_tensor* node) { return writes_cache(node, "cache_k_l"); }
bool writes_value(const ggml_tensor* node) { return writes_cache(node, "cache_v_l"); }

// "cache_k_l7" and "cache_v_l7" belong together.
bool same_layer(const ggml_tensor* key, const ggml_tensor* value) {
  constexpr size_t kPrefix = sizeof("cache_k_l") - 1;
  return std::strcmp(key->name + kPrefix, value->name + kPrefix) == 0;
}

}  // namespace

bool GraphWatch::callback(ggml_tensor* node, bool ask, void* watch) {
  auto& self = *static_cast<GraphWatch*>(watch);
  if (ask) return self.ask(node);
  if (self.mode_ == Mode::kStop) return false;
  const auto layer = self.layer_of_value_.find(node->view_src);
  if (layer == self.layer_of_value_.end() || layer->second != self.layers_seen_) {
    self.fail("layers ran in another order than at start");
    return true;
  }
  self.check_cells(node, layer->second == 0);
  ++self.layers_seen_;
  // After a failure the rows may be anywhere: nobody is told of them, and the run ends as an error.
  if (self.failure_.empty() && self.on_layer_) self.on_layer_(layer->second);
  return true;
}

bool GraphWatch::ask(ggml_tensor* node) {
  switch (mode_) {
    case Mode::kStop:
      return true;
    case Mode::kObserve:
      return writes_value(node);
    case Mode::kLearn:
      learn(node);
      return false;
    case Mode::kRun:
      if (writes_value(node) && node->view_src == layers_.front().value) check_cells(node, true);
      return false;
  }
  return false;
}

void GraphWatch::begin(Mode mode, std::vector<int64_t> cells) {
  mode_ = mode;
  cells_ = std::move(cells);
  cells_seen_ = 0;
  layers_seen_ = 0;
  failure_.clear();
  pending_key_ = nullptr;
  if (mode == Mode::kLearn) {
    layers_.clear();
    layer_of_value_.clear();
  }
}

Status GraphWatch::end() {
  if (failure_.empty() && mode_ == Mode::kObserve &&
      layers_seen_ != static_cast<int>(layers_.size())) {
    fail("only " + std::to_string(layers_seen_) + " of " + std::to_string(layers_.size()) +
         " layers were seen");
  }
  if (failure_.empty() && (mode_ == Mode::kObserve || mode_ == Mode::kRun) &&
      cells_seen_ != cells_.size()) {
    fail("rows of " + std::to_string(cells_seen_) + " of " + std::to_string(cells_.size()) +
         " tokens were seen");
  }
  if (failure_.empty() && mode_ == Mode::kLearn && layers_.empty()) fail("no cache write was seen");
  mode_ = Mode::kRun;
  return failure_.empty() ? Status()
                          : Status(ErrorCode::kInternal, "libllama's graph: " + failure_);
}

void GraphWatch::learn(ggml_tensor* node) {
  if (writes_key(node)) {
    if (pending_key_ != nullptr) fail("two key writes without a value write between them");
    pending_key_ = node->view_src;
  } else if (writes_value(node)) {
    if (pending_key_ == nullptr || !same_layer(pending_key_, node->view_src)) {
      fail("a value write does not follow its layer's key write");
      return;
    }
    layer_of_value_[node->view_src] = static_cast<int>(layers_.size());
    layers_.push_back({pending_key_, node->view_src, false});
    pending_key_ = nullptr;
  } else if (node->op == GGML_OP_FLASH_ATTN_EXT) {
    learn_mask(node);
  }
}

void GraphWatch::learn_mask(const ggml_tensor* attention) {
  const ggml_tensor* keys = attention->src[1];
  const ggml_tensor* mask = attention->src[3];
  if (keys == nullptr || mask == nullptr || mask->type != GGML_TYPE_F16 ||
      mask->buffer == nullptr || (mask->flags & GGML_TENSOR_FLAG_INPUT) == 0) {
    return;  // Unknown: the layer counts as seeing everything, which is always right
  }
  ggml_fp16_t first;
  ggml_backend_tensor_get(mask, &first, static_cast<size_t>(mask->ne[1] - 1) * mask->nb[1],
                          sizeof first);
  const ggml_tensor* cache = keys->view_src == nullptr ? keys : keys->view_src;
  for (Layer& layer : layers_) {
    if (layer.key == cache) layer.masks_first = std::isinf(ggml_fp16_to_fp32(first));
  }
}

void GraphWatch::check_cells(const ggml_tensor* write, bool first_layer) {
  const ggml_tensor* index = write->src[1];
  const auto count = static_cast<size_t>(ggml_nelements(index));
  // A batch may run as several graphs; every layer of one has the same rows as its first layer.
  const size_t begin = first_layer ? cells_seen_ : cells_seen_ - std::min(cells_seen_, count);
  if (index->type != GGML_TYPE_I64 || begin + count > cells_.size()) {
    fail("unexpected row indexes");
    return;
  }
  std::vector<int64_t> rows(count);
  ggml_backend_tensor_get(index, rows.data(), 0, count * sizeof(int64_t));
  if (std::memcmp(rows.data(), cells_.data() + begin, count * sizeof(int64_t)) != 0) {
    fail("rows were written to other cells than their positions");
  }
  if (first_layer) cells_seen_ = begin + count;
}

void GraphWatch::fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

}  // namespace tandem

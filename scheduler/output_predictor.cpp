#include "scheduler/output_predictor.h"

#include <algorithm>

namespace tandem::scheduler {

OutputPredictor::OutputPredictor(double quantile, int tenants_max)
    : quantile_(quantile), tenants_max_(static_cast<size_t>(std::max(1, tenants_max))) {}

void OutputPredictor::learn(const std::string& tenant, int output_tokens) {
  if (output_tokens < 0) return;
  all_.add(output_tokens);
  const auto it = tenants_.find(tenant);
  if (it != tenants_.end()) {
    order_.splice(order_.begin(), order_, it->second);
  } else {
    if (tenants_.size() >= tenants_max_) {
      tenants_.erase(order_.back().name);
      order_.pop_back();
    }
    order_.push_front({tenant, {}});
    tenants_.emplace(order_.front().name, order_.begin());
  }
  order_.front().lengths.add(output_tokens);
}

int OutputPredictor::predict(const std::string& tenant, int max_tokens) const {
  const int most = std::max(1, max_tokens);
  double length = all_.quantile(quantile_, most);
  if (const auto it = tenants_.find(tenant); it != tenants_.end())
    length = it->second->lengths.quantile(quantile_, length);
  return static_cast<int>(std::clamp<double>(length, 1, most));
}

}  // namespace tandem::scheduler

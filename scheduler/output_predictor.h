// How many tokens a request will generate: a quantile of what its tenant's last requests generated.
// Decode capacity is promised by it, since clients ask for far more than they use. Bounded in
// tenants; the least recently seen is forgotten. Pure; one thread.
#pragma once

#include <list>
#include <string>
#include <string_view>
#include <unordered_map>

#include "scheduler/cost_model.h"

namespace tandem::scheduler {

class OutputPredictor {
 public:
  OutputPredictor(double quantile, int tenants_max);

  void learn(const std::string& tenant, int output_tokens);
  // 1 to max_tokens. All tenants' lengths stand in for an unknown tenant's; max_tokens before any.
  int predict(const std::string& tenant, int max_tokens) const;
  int tenants() const { return static_cast<int>(tenants_.size()); }

 private:
  struct Tenant {
    std::string name;
    RecentQuantiles lengths;
  };

  double quantile_;
  size_t tenants_max_;
  std::list<Tenant> order_;  // Most recent first
  std::unordered_map<std::string_view, std::list<Tenant>::iterator> tenants_;
  RecentQuantiles all_;
};

}  // namespace tandem::scheduler

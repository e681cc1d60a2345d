// The order in which waiting requests get their turn. Between tenants: start-time fair queueing by
// the work that each has been given, divided by its weight, so that nobody's flood delays another.
// Within a tenant: priority; then who must start soonest to meet the objective; then, among those
// that are late already, the shortest. What has waited too long takes every fourth turn of its
// tenant. Requests of kResumedPriority go before all others.
//
// Pure; one thread. Every operation is logarithmic in what waits.
#pragma once

#include <climits>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "common/clock.h"

namespace tandem::scheduler {

constexpr int kResumedPriority = INT_MIN;  // A stream that has begun and lost its worker

class FairQueue {
 public:
  struct Item {
    uint64_t id = 0;  // Ascending in order of arrival
    std::string tenant;
    int priority = 0;
    TimePoint arrived{};
    TimePoint latest_start{};  // The objective is missed when it starts later
    double work = 1;           // Predicted, any unit; above 0
  };

  FairQueue(Duration starvation, int idle_tenants_max,
            std::unordered_map<std::string, double> weights);

  void push(const Item& item);
  // Whose turn it is; 0: nobody's. Stays the same until something changes or time passes.
  uint64_t head(TimePoint now);
  // The item got its turn: its tenant is charged.
  void serve(uint64_t id);
  // It went away.
  void erase(uint64_t id);
  // Where `tenant` may push out another's: the last to have come of the tenant that has most
  // waiting by its weight; 0 when `tenant` has the most itself.
  uint64_t newest_of_longest(const std::string& tenant) const;

  int size() const { return static_cast<int>(items_.size()); }
  int tenants() const { return static_cast<int>(tenants_.size()); }
  // Has the latest start of this item passed?
  bool late(uint64_t id) const;

 private:
  struct Class {
    std::set<std::pair<TimePoint, uint64_t>> on_time;  // By latest start
    std::set<std::pair<double, uint64_t>> late;        // By work
  };
  struct Tenant {
    uint64_t serial = 0;
    double weight = 1;
    double start = 0;  // Virtual time at which its next request starts
    std::map<int, Class> classes;
    std::set<uint64_t> by_age;
    int turns_since_aged = 0;
  };
  // Ties go to the tenant that came first, so that equal histories give equal orders.
  using Order = std::map<std::pair<double, uint64_t>, Tenant*>;
  struct Entry {
    Item item;
    Tenant* tenant = nullptr;  // nullptr: resumed
    bool late = false;
  };

  Tenant& tenant(const std::string& name);
  double length(const Tenant& of) const;
  uint64_t head_of(Tenant& of, TimePoint now);
  void take_out(std::unordered_map<uint64_t, Entry>::iterator it);
  void prune();

  const Duration starvation_;
  const size_t idle_tenants_max_;
  const std::unordered_map<std::string, double> weights_;
  std::unordered_map<uint64_t, Entry> items_;
  std::unordered_map<std::string, Tenant> tenants_;
  Order active_;  // With something waiting, by virtual start
  Order longest_;
  std::set<uint64_t> resumed_;
  double virtual_now_ = 0;
  uint64_t serials_ = 0;
};

}  // namespace tandem::scheduler

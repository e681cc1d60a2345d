#include "scheduler/fair_queue.h"

#include <algorithm>
#include <utility>

namespace tandem::scheduler {
namespace {

// Every so many turns of a tenant, what has waited too long goes first.
constexpr int kAgedTurn = 4;
// Items that turn late are sorted anew so many at a time: a clock that jumps turns all at once.
constexpr int kMovedPerLook = 16;
constexpr double kWorkMin = 1e-6;

}  // namespace

FairQueue::FairQueue(Duration starvation, int idle_tenants_max,
                     std::unordered_map<std::string, double> weights)
    : starvation_(starvation),
      idle_tenants_max_(static_cast<size_t>(std::max(0, idle_tenants_max))),
      weights_(std::move(weights)) {}

FairQueue::Tenant& FairQueue::tenant(const std::string& name) {
  const auto [it, fresh] = tenants_.try_emplace(name);
  if (fresh) {
    it->second.serial = ++serials_;
    if (const auto weight = weights_.find(name); weight != weights_.end())
      it->second.weight = weight->second;
  }
  return it->second;
}

double FairQueue::length(const Tenant& of) const {
  return static_cast<double>(of.by_age.size()) / of.weight;
}

void FairQueue::push(const Item& item) {
  Entry entry{.item = item};
  entry.item.work = std::max(item.work, kWorkMin);
  if (item.priority == kResumedPriority) {
    resumed_.insert(item.id);
  } else {
    Tenant& owner = tenant(item.tenant);
    entry.tenant = &owner;
    if (owner.by_age.empty()) {
      owner.start = std::max(owner.start, virtual_now_);
      active_.emplace(std::pair(owner.start, owner.serial), &owner);
    } else {
      longest_.erase({length(owner), owner.serial});
    }
    owner.by_age.insert(item.id);
    longest_.emplace(std::pair(length(owner), owner.serial), &owner);
    owner.classes[item.priority].on_time.emplace(item.latest_start, item.id);
  }
  items_.emplace(item.id, std::move(entry));
}

uint64_t FairQueue::head(TimePoint now) {
  if (!resumed_.empty()) return *resumed_.begin();
  return active_.empty() ? 0 : head_of(*active_.begin()->second, now);
}

uint64_t FairQueue::head_of(Tenant& of, TimePoint now) {
  const uint64_t oldest = *of.by_age.begin();
  if (of.turns_since_aged + 1 >= kAgedTurn && now - items_.at(oldest).item.arrived > starvation_)
    return oldest;
  Class& first = of.classes.begin()->second;
  for (int moved = 0;
       moved < kMovedPerLook && !first.on_time.empty() && first.on_time.begin()->first < now;
       ++moved) {
    Entry& entry = items_.at(first.on_time.begin()->second);
    entry.late = true;
    first.late.emplace(entry.item.work, entry.item.id);
    first.on_time.erase(first.on_time.begin());
  }
  if (const auto next = first.on_time.lower_bound({now, 0}); next != first.on_time.end())
    return next->second;
  return first.late.empty() ? first.on_time.begin()->second : first.late.begin()->second;
}

void FairQueue::serve(uint64_t id) {
  const auto it = items_.find(id);
  if (it == items_.end()) return;
  Tenant* owner = it->second.tenant;
  if (owner != nullptr) {
    owner->turns_since_aged = id == *owner->by_age.begin() ? 0 : owner->turns_since_aged + 1;
    active_.erase({owner->start, owner->serial});
    virtual_now_ = std::max(virtual_now_, owner->start);
    owner->start += it->second.item.work / owner->weight;
    active_.emplace(std::pair(owner->start, owner->serial), owner);
  }
  take_out(it);
}

void FairQueue::erase(uint64_t id) {
  if (const auto it = items_.find(id); it != items_.end()) take_out(it);
}

void FairQueue::take_out(std::unordered_map<uint64_t, Entry>::iterator it) {
  const Entry& entry = it->second;
  const Item& item = entry.item;
  if (entry.tenant == nullptr) {
    resumed_.erase(item.id);
    items_.erase(it);
    return;
  }
  Tenant& owner = *entry.tenant;
  const auto of = owner.classes.find(item.priority);
  if (entry.late)
    of->second.late.erase({item.work, item.id});
  else
    of->second.on_time.erase({item.latest_start, item.id});
  if (of->second.late.empty() && of->second.on_time.empty()) owner.classes.erase(of);
  longest_.erase({length(owner), owner.serial});
  owner.by_age.erase(item.id);
  items_.erase(it);
  if (owner.by_age.empty())
    active_.erase({owner.start, owner.serial});
  else
    longest_.emplace(std::pair(length(owner), owner.serial), &owner);
  prune();
}

// Idle tenants are kept for what they were given ahead of the others, up to a number.
void FairQueue::prune() {
  if (tenants_.size() - active_.size() <= idle_tenants_max_) return;
  std::erase_if(tenants_, [&](const auto& entry) {
    return entry.second.by_age.empty() && entry.second.start <= virtual_now_;
  });
  if (tenants_.size() - active_.size() > idle_tenants_max_)
    std::erase_if(tenants_, [](const auto& entry) { return entry.second.by_age.empty(); });
}

uint64_t FairQueue::newest_of_longest(const std::string& name) const {
  if (longest_.empty()) return 0;
  const Tenant* longest = longest_.rbegin()->second;
  const auto own = tenants_.find(name);
  const auto weight = weights_.find(name);
  const double waiting = own == tenants_.end() ? 0 : static_cast<double>(own->second.by_age.size());
  const double mine = (waiting + 1) / (weight == weights_.end() ? 1 : weight->second);
  return length(*longest) > mine ? *longest->by_age.rbegin() : 0;
}

bool FairQueue::late(uint64_t id) const {
  const auto it = items_.find(id);
  return it != items_.end() && it->second.late;
}

}  // namespace tandem::scheduler

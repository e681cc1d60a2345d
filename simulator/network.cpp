#include "simulator/network.h"

#include <algorithm>

#include "common/status.h"

namespace tandem::simulator {

Network::Network(int workers, double bytes_per_second)
    : capacity_(bytes_per_second),
      left_(static_cast<size_t>(workers) * 2),
      unfixed_(static_cast<size_t>(workers) * 2) {
  TANDEM_CHECK(bytes_per_second > 0, "a network without bandwidth");
}

Network::FlowId Network::start(int from, int to, double bytes, double cap, double now_s) {
  advance(now_s);
  FlowId id = static_cast<FlowId>(flows_.size());
  if (free_.empty()) {
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  flows_[static_cast<size_t>(id)] = {.from = from, .to = to, .remaining = bytes, .cap = cap};
  active_.push_back(id);
  share();
  return id;
}

void Network::set_cap(FlowId flow, double cap, double now_s) {
  advance(now_s);
  flows_[static_cast<size_t>(flow)].cap = cap;
  share();
}

void Network::cancel(FlowId flow, double now_s) {
  advance(now_s);
  remove(flow);
}

void Network::finish(FlowId flow, double now_s) {
  advance(now_s);
  moved_ += flows_[static_cast<size_t>(flow)].remaining;  // What rounding left
  remove(flow);
}

void Network::remove(FlowId flow) {
  active_.erase(std::find(active_.begin(), active_.end(), flow));
  free_.push_back(flow);
  share();
}

std::optional<Network::Finish> Network::next_finish() const {
  std::optional<Finish> first;
  for (const FlowId id : active_) {
    const Flow& flow = flows_[static_cast<size_t>(id)];
    const double at_s = now_s_ + flow.remaining / flow.rate;
    if (!first || at_s < first->at_s) first = Finish{id, at_s};
  }
  return first;
}

void Network::advance(double now_s) {
  const double passed = now_s - now_s_;
  now_s_ = now_s;
  if (passed <= 0) return;
  for (const FlowId id : active_) {
    Flow& flow = flows_[static_cast<size_t>(id)];
    const double bytes = std::min(flow.remaining, flow.rate * passed);
    flow.remaining -= bytes;
    moved_ += bytes;
  }
}

// Progressive filling: the tightest constraint, a flow's cap or a way's equal share, fixes its
// flows; what they leave is shared by the others.
void Network::share() {
  std::fill(left_.begin(), left_.end(), capacity_);
  std::fill(unfixed_.begin(), unfixed_.end(), 0);
  const auto out = [](const Flow& flow) { return static_cast<size_t>(flow.from) * 2; };
  const auto in = [](const Flow& flow) { return static_cast<size_t>(flow.to) * 2 + 1; };
  for (const FlowId id : active_) {
    Flow& flow = flows_[static_cast<size_t>(id)];
    flow.fixed = false;
    ++unfixed_[out(flow)];
    ++unfixed_[in(flow)];
  }
  const auto fair = [&](const Flow& flow) {
    const auto part = [&](size_t way) { return std::max(0.0, left_[way]) / unfixed_[way]; };
    return std::min({part(out(flow)), part(in(flow)), flow.cap});
  };
  for (size_t fixed = 0; fixed < active_.size();) {
    double tightest = kNoCap;
    for (const FlowId id : active_)
      if (const Flow& flow = flows_[static_cast<size_t>(id)]; !flow.fixed)
        tightest = std::min(tightest, fair(flow));
    constexpr double kSame = 1 + 1e-12;
    for (const FlowId id : active_) {
      Flow& flow = flows_[static_cast<size_t>(id)];
      if (flow.fixed || fair(flow) > tightest * kSame) continue;
      flow.fixed = true;
      flow.rate = std::max(tightest, 1.0);
      left_[out(flow)] -= tightest;
      left_[in(flow)] -= tightest;
      --unfixed_[out(flow)];
      --unfixed_[in(flow)];
      ++fixed;
    }
  }
}

}  // namespace tandem::simulator

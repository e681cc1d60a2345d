// The network between workers: every worker has one way out and one way in, and flows share them
// max-min fairly, each held back by its own cap (what the sender produces). Times are seconds of
// the virtual clock. Owned by one thread.
#pragma once

#include <limits>
#include <optional>
#include <vector>

namespace tandem::simulator {

class Network {
 public:
  using FlowId = int;
  static constexpr double kNoCap = std::numeric_limits<double>::infinity();

  // Requires: bytes_per_second > 0.
  Network(int workers, double bytes_per_second);

  // Requires: time never runs backwards, over all calls.
  FlowId start(int from, int to, double bytes, double cap, double now_s);
  void set_cap(FlowId flow, double cap, double now_s);
  void cancel(FlowId flow, double now_s);

  struct Finish {
    FlowId flow = -1;
    double at_s = 0;
  };
  // The flow that ends first if nothing changes; the oldest of those that end together.
  std::optional<Finish> next_finish() const;
  void finish(FlowId flow, double now_s);

  double rate(FlowId flow) const { return flows_[static_cast<size_t>(flow)].rate; }
  int active() const { return static_cast<int>(active_.size()); }
  double bytes_moved() const { return moved_; }

 private:
  struct Flow {
    int from = 0, to = 0;
    double remaining = 0;
    double cap = kNoCap;
    double rate = 0;
    bool fixed = false;
  };

  void advance(double now_s);
  void remove(FlowId flow);
  void share();

  const double capacity_;
  std::vector<Flow> flows_;
  std::vector<FlowId> free_;
  std::vector<FlowId> active_;  // In order of their start
  std::vector<double> left_;    // Per way: out of worker w at 2 w, in at 2 w + 1
  std::vector<int> unfixed_;
  double now_s_ = 0;
  double moved_ = 0;
};

}  // namespace tandem::simulator

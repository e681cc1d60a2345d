// One run of a simulated cluster: the events and what each does. simulate() owns it; one thread.
#pragma once

#include <memory>
#include <queue>
#include <vector>

#include "simulator/cluster.h"
#include "simulator/network.h"

namespace tandem::simulator {

class Simulation {
 public:
  Simulation(const ClusterOptions& options, std::span<const SimRequest> requests);
  ClusterResult run();

 private:
  using WorkerIndex = scheduler::WorkerIndex;

  enum class Kind : uint8_t {
    kArrival,       // a: request
    kDeliver,       // a: request, b: attempt; a command reaches its workers
    kStepEnd,       // a: worker
    kWorkerWake,    // a: worker; something parked can return
    kNetwork,       // b: generation; a flow ends
    kJoin,          // a: request, b: attempt; its KV is on the decode worker
    kPromptDone,    // a: request, b: attempt; the router hears of the first token
    kFinished,      // a: request, b: attempt; the router hears of the last token
    kReportSend,    // a: worker
    kReportArrive,  // a: worker
    kRoles,
    kWake,       // The scheduler's own wish
    kDrainOver,  // a: worker, b: its number of switches
  };
  struct Event {
    int64_t at_ns = 0;
    uint64_t order = 0;  // Events of one time happen in the order in which they were planned
    Kind kind = Kind::kRoles;
    int a = 0;
    int b = 0;
    bool operator>(const Event& other) const {
      return std::tie(at_ns, order) > std::tie(other.at_ns, other.order);
    }
  };

  // A request on its way through the cluster.
  struct Life {
    scheduler::Ticket ticket = 0;
    int attempt = 0;
    bool dispatched = false;  // Between decision and finished()
    bool ended = false;
    scheduler::Path path = scheduler::Path::kRefuse;
    WorkerIndex prefill = -1;
    WorkerIndex decode = -1;
    Network::FlowId flow = -1;
    bool pulling = false;  // That flow brings a prefix to the worker that computes the prompt
    int pulled_blocks = 0;
    bool computed = false;  // The prompt, of this attempt
    bool promised = false;  // KV is on its way to the decode worker
    bool arrived = false;   // All of it
    int emitted = 0;
    int64_t submitted_ns = 0;
    double first_s = -1;
    double last_s = -1;
    std::vector<double> resumed_s;  // First tokens of later attempts
    int record = -1;                // In the result's decisions
    std::string error;
  };
  struct Station {
    Station(int index, const WorkerSpec& spec, const ClusterOptions& options);
    Worker worker;
    bool switching = false;
    Role switching_to = Role::kDecode;
    std::string switching_why;
    bool drain_over = false;
    int switches = 0;
    bool report_planned = false;
    int64_t reported_ns = -1'000'000'000;
    scheduler::WorkerState report;  // On its way
    std::vector<scheduler::StepSample> samples;
    std::vector<scheduler::CacheEvent> cache_events;
    scheduler::WorkerState known;  // What the scheduler knows
  };

  double now_s() const { return static_cast<double>(now_ns_) * 1e-9; }
  TimePoint now() const { return TimePoint(Duration(now_ns_)); }
  void plan(double after_s, Kind kind, int a = 0, int b = 0);
  void handle(const Event& event);
  Life& life(int request) { return lives_[static_cast<size_t>(request)]; }
  const SimRequest& spec(int request) const { return requests_[static_cast<size_t>(request)]; }
  Station& station(WorkerIndex worker) { return stations_[static_cast<size_t>(worker)]; }
  bool current(const AttemptId& id) {
    return life(id.request).attempt == id.attempt && !life(id.request).ended;
  }
  WorkerIndex prompt_worker(int request) {
    const Life& l = life(request);
    return l.path == scheduler::Path::kLocal ? l.decode : l.prefill;
  }
  // Tokens that a new attempt computes: those of the answer so far are part of its prompt.
  int prompt_of(int request) { return spec(request).prompt_tokens + life(request).emitted; }

  void submit(int request);
  void pump();
  void decide(const scheduler::Decision& decision);
  void record(const scheduler::Decision& decision, int request);
  void deliver(int request);
  bool pull_prefix(int request, WorkerIndex to);
  void start_flow(int request, WorkerIndex from, WorkerIndex to, double bytes, double cap);
  void add_prompt(int request);
  void kick(WorkerIndex worker);
  void step_end(WorkerIndex worker);
  void prompt_end(WorkerIndex worker, const PromptJob& job);
  void sequence_end(int request);
  void plan_network();
  void flow_end();
  void join(int request);
  void join_on(WorkerIndex worker, int request);
  void first_token(int request);
  void finish(int request);
  void give_back(int request);
  void resume(int request);
  void report_send(WorkerIndex worker);
  void report_arrive(WorkerIndex worker);
  void changed(WorkerIndex worker);
  void roles();
  void begin_switch(const scheduler::RoleMove& move);
  void go_on_switching(WorkerIndex worker);
  void drain(WorkerIndex worker);
  void miss();
  ClusterResult take_result();
  std::vector<double> token_times(const std::vector<Stretch>& stretches, const Life& of) const;

  const ClusterOptions options_;
  const std::span<const SimRequest> requests_;
  const double ttft_s_;
  const double tpot_s_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  std::vector<Station> stations_;
  Network network_;
  std::vector<int> flow_owners_;  // By flow: the request
  int network_generation_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  int64_t now_ns_ = 0;
  std::vector<Life> lives_;
  std::vector<int> tickets_;  // By ticket: the request
  int64_t left_ = 0;          // Requests that have not ended
  int64_t misses_ = 0;
  int64_t quiet_ns_ = 0;  // Since when only clocks have ticked
  int64_t wake_ns_ = 0;   // Of the planned kWake; 0: none
  ClusterResult result_;
};

}  // namespace tandem::simulator

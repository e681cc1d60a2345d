#include "simulator/simulation.h"

#include <algorithm>
#include <climits>
#include <cmath>

namespace tandem::simulator {

using scheduler::Decision;
using scheduler::Path;

namespace {

constexpr int64_t kQuietMaxNs =
    3'600'000'000'000;              // A cluster that does nothing for so long is stuck
constexpr double kWakeMinS = 1e-3;  // Between two wishes of the scheduler to be asked again

int64_t to_ns(double seconds) { return static_cast<int64_t>(std::llround(seconds * 1e9)); }

}  // namespace

Simulation::Station::Station(int index, const WorkerSpec& spec, const ClusterOptions& options)
    : worker(index, spec, to_ms(options.config.slo.tpot), options.token_times) {}

Simulation::Simulation(const ClusterOptions& options, std::span<const SimRequest> requests)
    : options_(options),
      requests_(requests),
      ttft_s_(to_seconds(options.config.slo.ttft)),
      tpot_s_(to_seconds(options.config.slo.tpot)),
      scheduler_(scheduler::make_scheduler(options.config)),
      network_(static_cast<int>(options.workers.size()), options.network_bytes_per_second),
      lives_(requests.size()),
      left_(static_cast<int64_t>(requests.size())) {
  for (const WorkerSpec& worker : options.workers)
    stations_.emplace_back(static_cast<int>(stations_.size()), worker, options_);
}

void Simulation::plan(double after_s, Kind kind, int a, int b) {
  events_.push({now_ns_ + std::max<int64_t>(0, to_ns(after_s)), order_++, kind, a, b});
}

ClusterResult Simulation::run() {
  for (size_t i = 0; i < stations_.size(); ++i) {
    stations_[i].known = stations_[i].worker.report(true);
    scheduler_->worker_joined(static_cast<int>(i), stations_[i].known);
  }
  if (!requests_.empty()) plan(requests_[0].at_s, Kind::kArrival, 0);
  plan(0, Kind::kRoles);
  while (!events_.empty() && left_ > 0 && !result_.gave_up) {
    const Event event = events_.top();
    events_.pop();
    now_ns_ = event.at_ns;
    ++result_.events;
    if (event.kind != Kind::kRoles && event.kind != Kind::kWake) quiet_ns_ = now_ns_;
    if (now_ns_ - quiet_ns_ > kQuietMaxNs) break;
    handle(event);
  }
  return take_result();
}

void Simulation::handle(const Event& event) {
  switch (event.kind) {
    case Kind::kArrival:
      if (const auto next = static_cast<size_t>(event.a) + 1; next < requests_.size())
        plan(requests_[next].at_s - now_s(), Kind::kArrival, event.a + 1);
      submit(event.a);
      return pump();
    case Kind::kDeliver:
      return current({event.a, event.b}) ? deliver(event.a) : void();
    case Kind::kStepEnd:
      return step_end(event.a);
    case Kind::kWorkerWake:
      return kick(event.a);
    case Kind::kNetwork:
      return event.b == network_generation_ ? flow_end() : void();
    case Kind::kJoin:
      return current({event.a, event.b}) ? join(event.a) : void();
    case Kind::kPromptDone:
      if (life(event.a).attempt != event.b || !life(event.a).dispatched) return;
      scheduler_->prefill_finished(life(event.a).ticket);
      scheduler_->first_token(life(event.a).ticket, now());
      return pump();
    case Kind::kFinished:
      if (life(event.a).attempt != event.b || !life(event.a).dispatched) return;
      life(event.a).dispatched = false;
      scheduler_->finished(life(event.a).ticket, life(event.a).emitted);
      return pump();
    case Kind::kReportSend:
      return report_send(event.a);
    case Kind::kReportArrive:
      return report_arrive(event.a);
    case Kind::kRoles:
      return roles();
    case Kind::kWake:
      if (event.at_ns == wake_ns_) wake_ns_ = 0;
      return pump();
    case Kind::kDrainOver:
      return event.b == station(event.a).switches ? drain(event.a) : void();
  }
}

void Simulation::submit(int request) {
  Life& l = life(request);
  const SimRequest& s = spec(request);
  l.ticket = tickets_.size();
  l.submitted_ns = now_ns_;
  tickets_.push_back(request);
  scheduler::Request ask;
  ask.prompt_tokens = prompt_of(request);
  ask.max_tokens = std::max(options_.max_tokens, s.output_tokens) - l.emitted;
  ask.ttft_slo = options_.config.slo.ttft;
  ask.tpot_slo = options_.config.slo.tpot;
  ask.refuse_on_miss = options_.config.slo.on_miss == "refuse";
  ask.blocks = s.blocks;
  ask.priority = l.emitted > 0 ? INT_MIN : 0;  // As the router resumes
  ask.deadline = now() + options_.config.router.request_deadline;
  ask.prefill_only = ask.max_tokens == 1;
  scheduler_->submit(l.ticket, ask, now());
}

void Simulation::pump() {
  for (;;) {
    const std::vector<Decision> decisions = scheduler_->poll(now());
    if (decisions.empty()) break;
    for (const Decision& decision : decisions) decide(decision);
  }
  const TimePoint wish = scheduler_->next_wakeup();
  if (wish == TimePoint::max()) return;
  const int64_t at_ns = std::max(wish.time_since_epoch().count(), now_ns_ + to_ns(kWakeMinS));
  if (wake_ns_ > now_ns_ && wake_ns_ <= at_ns) return;
  wake_ns_ = at_ns;
  events_.push({at_ns, order_++, Kind::kWake, 0, 0});
}

void Simulation::decide(const Decision& decision) {
  const int request = tickets_[decision.ticket];
  Life& l = life(request);
  if (options_.decisions) record(decision, request);
  const std::string what = std::string(scheduler::path_name(decision.path)) + " " + decision.reason;
  ++result_.choices[what];
  l.path = decision.path;
  if (decision.path == Path::kRefuse) {
    l.error = "refused: " + decision.reason;
    l.ended = true;
    --left_;
    return miss();
  }
  l.dispatched = true;
  l.prefill = decision.prefill;
  l.decode = decision.decode;
  l.computed = l.promised = l.arrived = false;
  plan(options_.link_delay_s, Kind::kDeliver, request, l.attempt);
}

void Simulation::record(const Decision& decision, int request) {
  const Life& l = life(request);
  scheduler::DecisionRecord out;
  out.request = std::to_string(request);
  out.at_ms = now_s() * 1e3;
  out.waited_ms = static_cast<double>(now_ns_ - l.submitted_ns) * 1e-6;
  out.prompt_tokens = prompt_of(request);
  out.max_tokens = std::max(options_.max_tokens, spec(request).output_tokens) - l.emitted;
  out.ttft_slo_ms = ttft_s_ * 1e3;
  out.tpot_slo_ms = tpot_s_ * 1e3;
  out.path = scheduler::path_name(decision.path);
  out.reason = decision.reason;
  out.predicted_ttft_ms = decision.predicted_ttft_ms;
  out.predicted_ttft_bound_ms = decision.predicted_ttft_bound_ms;
  out.predicted_tpot_ms = decision.predicted_tpot_ms;
  const auto chosen = [&](int worker) {
    return worker == decision.prefill || worker == decision.decode;
  };
  for (const bool first : {true, false})
    for (size_t i = 0; i < stations_.size(); ++i)
      if (chosen(static_cast<int>(i)) == first &&
          out.candidates.size() < scheduler::kLoggedCandidatesMax)
        out.candidates.push_back(stations_[i].known);
  if (decision.prefill >= 0) out.prefill = station(decision.prefill).known.name;
  if (decision.decode >= 0) out.decode = station(decision.decode).known.name;
  out.outcome = decision.path == Path::kRefuse ? "refused" : "";
  life(request).record = static_cast<int>(result_.decisions.size());
  result_.decisions.push_back(std::move(out));
}

void Simulation::deliver(int request) {
  Life& l = life(request);
  for (const WorkerIndex worker : {l.prefill, l.decode})
    if (worker >= 0 && station(worker).switching) return resume(request);
  if (l.path == Path::kRemote) {
    station(l.decode).worker.promise(prompt_of(request));
    l.promised = true;
    changed(l.decode);
  }
  if (!options_.pull_prefixes || !pull_prefix(request, prompt_worker(request))) add_prompt(request);
}

// Begins to copy what another worker has of the prompt and this one has not. False: not worth it.
bool Simulation::pull_prefix(int request, WorkerIndex to) {
  const SimRequest& s = spec(request);
  const int own = station(to).worker.cached_blocks(s.blocks);
  int most = own;
  WorkerIndex from = -1;
  for (size_t i = 0; i < stations_.size(); ++i)
    if (const int there = stations_[i].worker.cached_blocks(s.blocks); there > most) {
      most = there;
      from = static_cast<WorkerIndex>(i);
    }
  if (from < 0) return false;
  const scheduler::CostParameters& costs = station(to).worker.spec().costs;
  const double tokens = (most - own) * kTraceBlockTokens;
  const double bytes = tokens * static_cast<double>(costs.kv_bytes_per_token);
  const double saved_ms = costs.prefill_ms(own * kTraceBlockTokens, tokens);
  if (bytes / options_.network_bytes_per_second * 1e3 > saved_ms) return false;
  Life& l = life(request);
  l.pulling = true;
  l.pulled_blocks = most;
  start_flow(request, from, to, bytes, Network::kNoCap);
  result_.pulled_tokens += static_cast<int64_t>(tokens);
  return true;
}

void Simulation::start_flow(int request, WorkerIndex from, WorkerIndex to, double bytes,
                            double cap) {
  Life& l = life(request);
  l.flow = network_.start(from, to, bytes, cap, now_s());
  const auto flow = static_cast<size_t>(l.flow);
  if (flow_owners_.size() <= flow) flow_owners_.resize(flow + 1);
  flow_owners_[flow] = request;
  result_.network_bytes += bytes;
  plan_network();
}

void Simulation::add_prompt(int request) {
  const Life& l = life(request);
  const WorkerIndex at = prompt_worker(request);
  station(at).worker.add_prompt({.id = {request, l.attempt},
                                 .tokens = prompt_of(request),
                                 .blocks = spec(request).blocks,
                                 .local = l.path == Path::kLocal},
                                now_s());
  changed(at);
  kick(at);
}

void Simulation::kick(WorkerIndex worker) {
  Station& s = station(worker);
  if (s.worker.busy() || (s.switching && s.drain_over)) return;
  const auto step = s.worker.begin_step(now_s());
  if (!step) {
    if (const auto wake = s.worker.wake_s(now_s()))
      plan(*wake - now_s() + 1e-9, Kind::kWorkerWake, worker);
    return;
  }
  plan(step->seconds, Kind::kStepEnd, worker);
  for (const PromptJob& job : step->started) {
    result_.prompt_tokens += job.tokens;
    result_.cached_tokens += job.cached;
    if (!current(job.id) || life(job.id.request).path != Path::kRemote) continue;
    // Layer by layer: what has been computed may leave, so that the flow keeps the pace of the
    // computation at most, until that has ended.
    const double bytes = static_cast<double>(job.tokens) *
                         static_cast<double>(s.worker.spec().costs.kv_bytes_per_token);
    start_flow(job.id.request, worker, life(job.id.request).decode, bytes, bytes / step->seconds);
  }
}

void Simulation::plan_network() {
  ++network_generation_;
  if (const auto next = network_.next_finish())
    plan(next->at_s - now_s(), Kind::kNetwork, 0, network_generation_);
}

void Simulation::flow_end() {
  const auto next = network_.next_finish();
  const int request = flow_owners_[static_cast<size_t>(next->flow)];
  network_.finish(next->flow, now_s());
  Life& l = life(request);
  l.flow = -1;
  if (l.pulling) {
    l.pulling = false;
    const std::span<const uint64_t> blocks(spec(request).blocks);
    station(prompt_worker(request)).worker.keep(blocks.first(static_cast<size_t>(l.pulled_blocks)));
    add_prompt(request);
    return plan_network();
  }
  l.arrived = true;
  if (l.computed) plan(options_.network_delay_s, Kind::kJoin, request, l.attempt);
  plan_network();
}

void Simulation::step_end(WorkerIndex worker) {
  Station& s = station(worker);
  StepEnd end;
  s.worker.end_step(now_s(), end);
  for (const PromptJob& job : end.prompts)
    if (current(job.id)) prompt_end(worker, job);
  for (const Sequence& sequence : end.sequences)
    if (current(sequence.id)) {
      life(sequence.id.request).emitted = sequence.emitted;
      sequence_end(sequence.id.request);
    }
  changed(worker);
  if (s.switching) go_on_switching(worker);
  kick(worker);
}

void Simulation::prompt_end(WorkerIndex worker, const PromptJob& job) {
  const int request = job.id.request;
  Life& l = life(request);
  l.computed = true;
  ++l.emitted;
  first_token(request);
  plan(options_.link_delay_s, Kind::kPromptDone, request, l.attempt);
  if (l.emitted >= spec(request).output_tokens) {
    give_back(request);
    return sequence_end(request);
  }
  if (l.path == Path::kLocal) return join_on(worker, request);
  if (l.flow >= 0) {
    network_.set_cap(l.flow, Network::kNoCap, now_s());
    plan_network();
  } else if (l.arrived) {
    plan(options_.network_delay_s, Kind::kJoin, request, l.attempt);
  }
}

void Simulation::join(int request) {
  Life& l = life(request);
  station(l.decode).worker.redeem(prompt_of(request) - 1);
  l.promised = false;
  join_on(l.decode, request);
  changed(l.decode);
  kick(l.decode);
}

void Simulation::join_on(WorkerIndex worker, int request) {
  const Life& l = life(request);
  const SimRequest& s = spec(request);
  station(worker).worker.join({.id = {request, l.attempt},
                               .emitted = l.emitted,
                               .output_tokens = s.output_tokens,
                               .context = prompt_of(request),
                               .first_token_s = l.first_s,
                               .tpot_ms = tpot_s_ * 1e3,
                               .blocks = s.blocks});
}

void Simulation::first_token(int request) {
  Life& l = life(request);
  l.last_s = now_s() + options_.link_delay_s;
  if (l.first_s >= 0) return l.resumed_s.push_back(l.last_s);
  l.first_s = l.last_s;
  if (l.first_s - spec(request).at_s > ttft_s_)
    miss();
  else
    ++result_.within_ttft;
}

// The answer is complete.
void Simulation::sequence_end(int request) {
  Life& l = life(request);
  l.last_s = now_s() + options_.link_delay_s;
  l.ended = true;
  --left_;
  plan(options_.link_delay_s, Kind::kFinished, request, l.attempt);
  const int gaps = spec(request).output_tokens - 1;
  const bool in_time = l.first_s - spec(request).at_s <= ttft_s_;
  const bool steady = gaps <= 0 || (l.last_s - l.first_s) / gaps <= tpot_s_;
  result_.within_tpot += steady ? 1 : 0;
  result_.within_both += in_time && steady ? 1 : 0;
  if (in_time && !steady) miss();
}

void Simulation::miss() {
  if (++misses_ > options_.misses_max && options_.misses_max >= 0) result_.gave_up = true;
}

// Ends what an attempt holds beside its place on a worker.
void Simulation::give_back(int request) {
  Life& l = life(request);
  if (l.flow >= 0) {
    network_.cancel(l.flow, now_s());
    l.flow = -1;
    l.pulling = false;
    plan_network();
  }
  if (l.promised) {
    // A prompt that has been computed has one token more than was promised for.
    station(l.decode).worker.redeem(prompt_of(request) - (l.computed ? 1 : 0));
    l.promised = false;
    changed(l.decode);
  }
}

// What a change of role drops goes on elsewhere, its tokens so far as part of the prompt.
void Simulation::resume(int request) {
  Life& l = life(request);
  give_back(request);
  if (l.prefill >= 0 && !l.computed) station(l.prefill).worker.drop_prompt({request, l.attempt});
  scheduler_->finished(l.ticket, -1);
  l.dispatched = false;
  l.computed = false;
  ++l.attempt;
  ++result_.resumed;
  submit(request);
  pump();
}

void Simulation::changed(WorkerIndex worker) {
  Station& s = station(worker);
  if (s.report_planned) return;
  s.report_planned = true;
  const double since_s = static_cast<double>(now_ns_ - s.reported_ns) * 1e-9;
  plan(std::max(0.0, options_.report_period_s - since_s), Kind::kReportSend, worker);
}

void Simulation::report_send(WorkerIndex worker) {
  Station& s = station(worker);
  s.report_planned = false;
  s.reported_ns = now_ns_;
  s.report = s.worker.report(!s.switching);
  s.samples = s.worker.take_samples();
  s.cache_events = s.worker.take_cache_events();
  plan(options_.link_delay_s, Kind::kReportArrive, worker);
}

void Simulation::report_arrive(WorkerIndex worker) {
  Station& s = station(worker);
  for (const scheduler::StepSample& sample : s.samples) scheduler_->observe(worker, sample);
  if (!s.cache_events.empty()) scheduler_->cache_changed(worker, s.cache_events);
  s.known = s.report;
  scheduler_->worker_updated(worker, s.known);
  pump();
}

void Simulation::roles() {
  for (const scheduler::RoleMove& move : scheduler_->role_moves(now())) begin_switch(move);
  TimelinePoint point{.at_s = now_s(), .queued = scheduler_->queued()};
  for (const Station& s : stations_) {
    ++point.roles[s.worker.role()];
    point.switching += s.switching ? 1 : 0;
    point.prompts += s.worker.prompts();
    point.decoding += s.worker.running();
  }
  result_.timeline.push_back(std::move(point));
  plan(options_.role_period_s, Kind::kRoles);
  pump();
}

void Simulation::begin_switch(const scheduler::RoleMove& move) {
  Station& s = station(move.worker);
  if (s.switching || s.worker.role() == move.to)
    return scheduler_->role_move_failed(move.worker, now());
  s.switching = true;
  s.switching_to = move.to;
  s.switching_why = move.reason;
  s.drain_over = false;
  ++s.switches;
  plan(to_seconds(options_.config.worker.role_drain), Kind::kDrainOver, move.worker, s.switches);
  changed(move.worker);
  go_on_switching(move.worker);
}

// Between decode and coupled nothing has to go: both hold sequences and run prompts beside them.
void Simulation::go_on_switching(WorkerIndex worker) {
  Station& s = station(worker);
  const bool keeps = serves_decode(s.worker.role()) && serves_decode(s.switching_to);
  const bool empty =
      !s.worker.has_prompts() && !s.worker.has_sequences() && !s.worker.has_promises();
  if (!keeps && !empty) return s.drain_over && !s.worker.busy() ? drain(worker) : void();
  result_.role_changes.push_back(
      {now_s(), s.worker.spec().name, s.worker.role(), s.switching_to, s.switching_why});
  s.worker.set_role(s.switching_to);
  s.switching = s.drain_over = false;
  changed(worker);
}

// Time is up: what is still here goes on elsewhere.
void Simulation::drain(WorkerIndex worker) {
  Station& s = station(worker);
  if (!s.switching) return;
  s.drain_over = true;
  if (s.worker.busy()) return;
  std::vector<int> gone;
  for (const Sequence& sequence : s.worker.evict_sequences(now_s()))
    if (current(sequence.id)) {
      life(sequence.id.request).emitted = sequence.emitted;
      gone.push_back(sequence.id.request);
    }
  for (const PromptJob& job : s.worker.evict_prompts())
    if (current(job.id)) gone.push_back(job.id.request);
  for (size_t i = 0; i < lives_.size() && s.worker.has_promises(); ++i)
    if (lives_[i].promised && lives_[i].decode == worker) gone.push_back(static_cast<int>(i));
  for (const int request : gone) resume(request);
  go_on_switching(worker);
}

}  // namespace tandem::simulator

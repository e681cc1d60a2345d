#include "router/worker_pool.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <future>

#include "common/log.h"
#include "common/metrics.h"
#include "common/random.h"

namespace tandem::router {
namespace asio = boost::asio;

namespace {

using scheduler::WorkerIndex;

constexpr std::chrono::seconds kControlDeadline{2};

std::string mismatch(std::string_view what, std::string_view ours, std::string_view theirs) {
  return std::string(what) + " is " + tandem::quoted(theirs) + " here, " + tandem::quoted(ours) +
         " in this cluster";
}

}  // namespace

struct WorkerPool::Worker {
  std::string address;
  std::unique_ptr<link::Dialer> dialer;
  link::SessionPtr session;  // While up
  link::Hello hello;
  link::Load load;
  bool ever_up = false;
  bool draining = false;
  std::optional<Role> switching_to;  // As the router asked
  std::string refusal;               // Why the hello of this handshake was refused
  bool refused = false;              // The last handshake ended so
  std::string reason;                // Why it is not up
};

WorkerPool::WorkerPool(const Config& config, boost::asio::io_context& io, std::string secret,
                       Identity identity)
    : config_(config),
      io_(io),
      identity_(std::move(identity)),
      epoch_{random_u64()},
      link_context_{config.link, std::move(secret), {}},
      agreement_({config.model.engine, identity_.model_digest, config.engine.chunk_tokens},
                 config.prefill.workers.size() + config.decode.workers.size() +
                     config.coupled.workers.size() + config.partitioned.workers.size()) {
  link_context_.self = [this] {
    link::Hello hello;
    hello.kind = "router";
    hello.name = "router";
    hello.epoch = epoch_;
    hello.model = identity_.model;
    hello.tokenizer_digest = identity_.tokenizer_digest;
    return hello;
  };
  for (const PoolConfig* pool :
       {&config.prefill, &config.decode, &config.coupled, &config.partitioned}) {
    for (std::string address : pool->workers) {
      if (address.starts_with("tcp://")) address.erase(0, 6);
      const auto same = [&](const auto& worker) { return worker->address == address; };
      if (std::any_of(workers_.begin(), workers_.end(), same)) continue;
      workers_.push_back(std::make_unique<Worker>());
      workers_.back()->address = address;
      workers_.back()->reason = "not reached yet";
      WorkerSnapshot& snapshot = snapshots_.emplace_back();
      snapshot.address = address;
      snapshot.state = "connecting";
      snapshot.reason = workers_.back()->reason;
      snapshot.hello.role = pool->role;
    }
  }
}

WorkerPool::~WorkerPool() = default;

void WorkerPool::start(PoolListener& listener) {
  listener_ = &listener;
  for (WorkerIndex index = 0; index < static_cast<WorkerIndex>(workers_.size()); ++index) {
    Worker& worker = *workers_[static_cast<size_t>(index)];
    worker.dialer = link::keep_dialled(io_, link_context_, worker.address, handlers(index));
  }
}

void WorkerPool::stop() {
  for (const auto& worker : workers_)
    if (worker->dialer) worker->dialer->stop();
}

link::SessionHandlers WorkerPool::handlers(WorkerIndex index) {
  link::SessionHandlers handlers;
  handlers.check = [this, index](const link::Hello& hello) {
    Status status = check(index, hello);
    workers_[static_cast<size_t>(index)]->refusal = status.ok() ? "" : status.message();
    return status;
  };
  handlers.on_open = [this, index](const link::SessionPtr& session) { opened(index, session); };
  handlers.on_frame = [this, index](const link::SessionPtr& session, link::FrameKind kind,
                                    std::string_view body) {
    if (workers_[static_cast<size_t>(index)]->session == session) frame(index, kind, body);
  };
  handlers.on_close = [this, index](const link::SessionPtr&, const Status& why) {
    closed(index, why);
  };
  return handlers;
}

// Every worker must be able to continue what any other one began.
Status WorkerPool::check(WorkerIndex index, const link::Hello& hello) {
  const auto refuse = [](std::string why) {
    return Status(ErrorCode::kFailedPrecondition, std::move(why));
  };
  if (hello.kind != "worker")
    return refuse("the peer is a " + tandem::quoted(hello.kind) + ", not a worker");
  if (hello.tokenizer_digest != identity_.tokenizer_digest)
    return refuse(mismatch("tokenizer digest", identity_.tokenizer_digest, hello.tokenizer_digest));
  if (hello.context < identity_.context)
    return refuse("context of " + std::to_string(hello.context) + " tokens, " +
                  std::to_string(identity_.context) + " needed");
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& other = *workers_[i];
    if (static_cast<WorkerIndex>(i) == index || !other.session) continue;
    if (hello.name == other.hello.name && hello.epoch != other.hello.epoch)
      return refuse("another worker is named " + tandem::quoted(hello.name));
  }
  const uint64_t before = agreement_.generation();
  Status status = agreement_.vote(static_cast<size_t>(index), hello);
  if (agreement_.generation() != before) asio::post(io_, [this] { close_strangers(); });
  return status;
}

// After another model has won the majority.
void WorkerPool::close_strangers() {
  for (WorkerIndex index = 0; index < size(); ++index) {
    if (!is_up(index) || agreement_.agrees(hello(index))) continue;
    Worker& worker = *workers_[static_cast<size_t>(index)];
    worker.refusal = "most workers run another model";
    worker.session->close(Status(ErrorCode::kFailedPrecondition, worker.refusal));
  }
}

void WorkerPool::opened(WorkerIndex index, const link::SessionPtr& session) {
  Worker& worker = *workers_[static_cast<size_t>(index)];
  // Again, since another worker may have opened while this one shook hands.
  if (const Status status = check(index, session->peer()); !status.ok()) {
    worker.refusal = status.message();
    return session->close(status);
  }
  worker.session = session;
  worker.hello = session->peer();
  worker.load = link::Load{};
  worker.load.role = worker.hello.role;
  worker.load.slots_free = worker.hello.slots;
  worker.load.kv_tokens_capacity = worker.hello.kv_tokens;
  worker.ever_up = true;
  worker.draining = false;
  worker.switching_to.reset();
  worker.refused = false;
  worker.reason.clear();
  log_info("event=worker_joined worker={} role={} address={} epoch={:016x}",
           tandem::quoted(worker.hello.name), role_name(worker.hello.role), worker.address,
           worker.hello.epoch.value);
  refresh(worker, index);
  {
    const std::lock_guard lock(snapshot_mutex_);
    model_build_ = {worker.hello.build, worker.hello.model_digest, worker.hello.kv_layout_digest};
  }
  listener_->worker_up(index);
}

void WorkerPool::closed(WorkerIndex index, const Status& why) {
  Worker& worker = *workers_[static_cast<size_t>(index)];
  const bool was_up = worker.session != nullptr;
  worker.session.reset();
  worker.switching_to.reset();
  worker.refused = !worker.refusal.empty();
  // Who was refused is there, and keeps its vote.
  if (!worker.refused) agreement_.withdraw(static_cast<size_t>(index));
  const std::string reason = worker.refused ? std::exchange(worker.refusal, {}) : why.message();
  if (was_up) {
    log_warn("event=worker_lost worker={} reason={}", tandem::quoted(worker.hello.name),
             tandem::quoted(reason));
  } else if (worker.reason != reason) {
    log_warn("event=worker_unreachable address={} reason={}", worker.address,
             tandem::quoted(reason));
  }
  worker.reason = reason;
  refresh(worker, index);
  if (was_up) listener_->worker_down(index, why);
}

void WorkerPool::frame(WorkerIndex index, link::FrameKind kind, std::string_view body) {
  if (kind == link::FrameKind::kLoad)
    took_load(index, body);
  else
    listener_->worker_frame(index, kind, body);
}

void WorkerPool::took_load(WorkerIndex index, std::string_view body) {
  Worker& worker = *workers_[static_cast<size_t>(index)];
  Result<link::Load> load = link::Load::decode(body);
  if (!load.ok()) return close(index, load.status());
  worker.load = std::move(*load);
  worker.draining = worker.load.draining;
  const std::vector<link::StepSample> samples = std::move(worker.load.samples);
  worker.load.samples.clear();
  refresh(worker, index);
  if (!samples.empty()) listener_->worker_measured(index, samples);
  listener_->worker_changed(index);
}

bool WorkerPool::is_up(WorkerIndex index) const {
  return index >= 0 && index < static_cast<WorkerIndex>(workers_.size()) &&
         workers_[static_cast<size_t>(index)]->session != nullptr;
}

bool WorkerPool::is_up(const WorkerKey& key) const {
  return is_up(key.index) && hello(key.index).epoch == key.epoch;
}

WorkerKey WorkerPool::key(WorkerIndex index) const {
  return is_up(index) ? WorkerKey{index, hello(index).epoch} : WorkerKey{};
}

const link::Hello& WorkerPool::hello(WorkerIndex index) const {
  return workers_[static_cast<size_t>(index)]->hello;
}

const link::Load& WorkerPool::load(WorkerIndex index) const {
  return workers_[static_cast<size_t>(index)]->load;
}

bool WorkerPool::accepting(WorkerIndex index) const {
  const Worker& worker = *workers_[static_cast<size_t>(index)];
  return worker.session != nullptr && !worker.draining && !worker.switching_to;
}

WorkerIndex WorkerPool::find(const std::string& name) const {
  WorkerIndex found = -1;
  for (WorkerIndex index = 0; index < size(); ++index) {
    const Worker& worker = *workers_[static_cast<size_t>(index)];
    if (worker.hello.name != name) continue;
    if (worker.session) return index;
    found = index;
  }
  return found;
}

scheduler::WorkerState WorkerPool::state(WorkerIndex index) const {
  const Worker& worker = *workers_[static_cast<size_t>(index)];
  const link::Load& load = worker.load;
  scheduler::WorkerState state;
  state.name = worker.hello.name;
  state.role = load.role;
  state.accepting = accepting(index);
  state.slots = load.slots > 0 ? load.slots : worker.hello.slots;
  state.slots_free = load.slots_free;
  state.kv_tokens_capacity =
      load.kv_tokens_capacity > 0 ? load.kv_tokens_capacity : worker.hello.kv_tokens;
  state.kv_tokens_used = load.kv_tokens_used;
  state.kv_tokens_reserved = load.kv_tokens_reserved;
  state.prefill_backlog_tokens = load.prefill_backlog_tokens;
  state.decode_step_ms = load.decode_step_ms;
  state.prefill_us_per_token = load.prefill_us_per_token;
  return state;
}

Status WorkerPool::send(WorkerIndex index, link::FrameKind kind, std::string_view body) {
  if (!is_up(index)) return Status(ErrorCode::kUnavailable, "the worker is not connected");
  return workers_[static_cast<size_t>(index)]->session->send(kind, body);
}

void WorkerPool::close(WorkerIndex index, Status reason) {
  if (is_up(index)) workers_[static_cast<size_t>(index)]->session->close(std::move(reason));
}

Status WorkerPool::control(const std::string& name, const std::string& action) {
  return run_there([this, name, action] { return control_here(name, action); });
}

Status WorkerPool::run_there(std::function<Status()> work) {
  // Shared with the link thread, which may answer after this caller has given up.
  auto answer = std::make_shared<std::promise<Status>>();
  std::future<Status> future = answer->get_future();
  asio::post(io_, [work = std::move(work), answer] { answer->set_value(work()); });
  if (future.wait_for(kControlDeadline) != std::future_status::ready)
    return Status(ErrorCode::kDeadlineExceeded, "the link thread did not answer");
  return future.get();
}

Status WorkerPool::control_here(const std::string& name, const std::string& action) {
  const WorkerIndex index = find(name);
  if (index < 0) return Status(ErrorCode::kNotFound, "no worker is named " + tandem::quoted(name));
  TANDEM_RETURN_IF_ERROR(
      send(index, link::FrameKind::kControl, link::ControlCommand{action}.encode()));
  // At once, so that nothing is sent there while the worker's own word is on its way.
  Worker& worker = *workers_[static_cast<size_t>(index)];
  worker.draining = action == "drain";
  log_info("event=worker_control worker={} action={}", tandem::quoted(name), action);
  refresh(worker, index);
  listener_->worker_changed(index);
  return {};
}

Status WorkerPool::begin_switch(WorkerIndex index, Role to) {
  TANDEM_RETURN_IF_ERROR(
      send(index, link::FrameKind::kControl, link::ControlCommand{"role", to}.encode()));
  Worker& worker = *workers_[static_cast<size_t>(index)];
  worker.switching_to = to;
  refresh(worker, index);
  listener_->worker_changed(index);
  return {};
}

void WorkerPool::end_switch(WorkerIndex index) {
  Worker& worker = *workers_[static_cast<size_t>(index)];
  worker.switching_to.reset();
  refresh(worker, index);
  if (worker.session) listener_->worker_changed(index);
}

void WorkerPool::refresh(const Worker& worker, WorkerIndex index) {
  refresh_ready();
  const std::lock_guard lock(snapshot_mutex_);
  WorkerSnapshot& snapshot = snapshots_[static_cast<size_t>(index)];
  snapshot.switching_to =
      worker.switching_to ? std::string(role_name(*worker.switching_to)) : worker.load.switching_to;
  snapshot.state = !worker.session                  ? (worker.refused ? "refused" : "connecting")
                   : !snapshot.switching_to.empty() ? "switching"
                   : worker.draining                ? "draining"
                                                    : "ready";
  snapshot.reason = worker.reason;
  if (worker.ever_up) {
    snapshot.hello = worker.hello;
    snapshot.load = worker.load;
  }
}

void WorkerPool::refresh_ready() {
  bool prefill = config_.prefill.workers.empty();
  bool decode = false;
  bool coupled = false;
  bool may_return = false;
  for (const auto& worker : workers_) {
    if (!worker->session && worker->ever_up && !worker->refused)
      may_return |= serves_decode(worker->load.role);
    if (!worker->session || worker->draining || worker->switching_to) continue;
    prefill |= serves_prefill(worker->load.role);
    decode |= serves_decode(worker->load.role);
    coupled |= worker->load.role == Role::kCoupled;
  }
  ready_.store(coupled || (prefill && decode), std::memory_order_relaxed);
  may_return_.store(may_return, std::memory_order_relaxed);
}

std::vector<WorkerSnapshot> WorkerPool::snapshot() const {
  const std::lock_guard lock(snapshot_mutex_);
  return snapshots_;
}

ModelBuild WorkerPool::model_build() const {
  const std::lock_guard lock(snapshot_mutex_);
  return model_build_;
}

void WorkerPool::publish_metrics() const {
  for (const WorkerSnapshot& snapshot : snapshot()) {
    if (snapshot.hello.name.empty()) continue;
    const metrics::Label source{"worker", snapshot.hello.name};
    if (snapshot.state == "connecting" || snapshot.state == "refused") {
      metrics::forget_pushed(source);
      continue;
    }
    const link::Load& load = snapshot.load;
    std::map<std::string, double> series = load.counters;
    const auto kv = [&](const char* state, int64_t tokens) {
      series[metrics::series_name("tandem_kv_tokens", {{"state", state}})] =
          static_cast<double>(tokens);
    };
    kv("used", load.kv_tokens_used);
    kv("reserved", load.kv_tokens_reserved);
    kv("capacity", load.kv_tokens_capacity);
    series["tandem_transfers_in_flight"] = load.transfers_in_flight;
    series["tandem_worker_running"] = load.running;
    series["tandem_worker_waiting"] = load.waiting;
    series["tandem_worker_slots_free"] = load.slots_free;
    if (load.kv_tokens_capacity > 0 && serves_decode(load.role))
      series["vllm:kv_cache_usage_perc"] =
          static_cast<double>(load.kv_tokens_used) / static_cast<double>(load.kv_tokens_capacity);
    metrics::export_pushed(source, series);
  }
}

}  // namespace tandem::router

#include "worker/worker.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <thread>

#include "common/log.h"
#include "common/random.h"
#include "worker/engine_loop.h"
#include "worker/equipment.h"
#include "worker/link_front.h"
#include "worker/probe.h"
#include "worker/processors.h"

namespace tandem::worker {
namespace {

namespace asio = boost::asio;

// How long sessions may take to say goodbye.
constexpr auto kGoodbye = std::chrono::seconds(1);

class WorkerImpl final : public Worker {
 public:
  WorkerImpl(Config config, Role role, std::string name, std::unique_ptr<Engine> engine,
             std::string secret)
      : config_(std::move(config)),
        name_(std::move(name)),
        engine_(std::move(engine)),
        guard_(asio::make_work_guard(io_)),
        link_{config_.link, std::move(secret), [this] { return hello_now(); }},
        abort_switch_(io_, *engine_),
        report_(io_, config_, name_),
        pacer_(config_),
        context_{config_,       name_,   role,   *engine_,          inbox_,
                 abort_switch_, report_, pacer_, SystemClock::get()},
        equipment_(io_, link_, hello_, context_) {}

  ~WorkerImpl() override { stop(); }

  Status prepare();
  void start() override;
  void drain() override { inbox_.push(DrainChanged{true}); }
  bool idle() const override { return loop_->idle(); }
  void stop() override;
  const std::string& name() const override { return name_; }
  std::string address() const override { return listener_->address(); }

 private:
  void fill_hello();
  // With the role and the slots of now.
  link::Hello hello_now() const;
  void close_links();

  const Config config_;
  const std::string name_;
  const std::unique_ptr<Engine> engine_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  link::Hello hello_;
  const link::LinkContext link_;
  Inbox inbox_;
  AbortSwitch abort_switch_;
  LoadReport report_;
  ChunkPacer pacer_;
  const WorkContext context_;
  Equipment equipment_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<LinkFront> front_;
  std::unique_ptr<link::Listener> listener_;
  std::promise<void> io_done_;
  std::thread io_thread_;
  std::thread engine_thread_;
};

Status WorkerImpl::prepare() {
  auto samples = probe_engine(*engine_, config_, SystemClock::get());
  if (!samples) return samples.status();
  report_.set_first_samples(std::move(*samples));
  hello_.epoch.value = random_u64();
  auto work = equipment_.take_role(context_.role);
  if (!work) return work.status();
  loop_ = std::make_unique<EngineLoop>(
      context_, std::move(*work), [this](const link::Load& load) { report_.publish(load); },
      [this](Role role) { return equipment_.take_role(role); });
  fill_hello();
  front_ = std::make_unique<LinkFront>(context_, hello_, equipment_);
  auto listener = link::listen(io_, link_, front_->handlers());
  if (!listener) return listener.status();
  listener_ = std::move(*listener);
  hello_.listen = listener_->address();
  return {};
}

void WorkerImpl::fill_hello() {
  const ModelInfo& model = engine_->model();
  hello_.kind = "worker";
  hello_.name = name_;
  hello_.build = model.build;
  hello_.model = model.name;
  hello_.model_digest = model.digest;
  hello_.tokenizer_digest = model.tokenizer_digest;
  hello_.kv_layout_digest = engine_->kv_layout().digest();
  hello_.engine = config_.model.engine;
  hello_.kv_bytes_per_token = static_cast<int64_t>(engine_->kv_layout().bytes_per_token());
  hello_.context = model.context;
  hello_.chunk_tokens = model.chunk_tokens;
  hello_.exact_batch_max = model.exact_batch_max;
  hello_.transports = equipment_.transport_names();
}

link::Hello WorkerImpl::hello_now() const {
  const link::Load load = report_.current();
  link::Hello hello = hello_;
  hello.role = load.role;
  hello.slots = load.slots;
  hello.kv_tokens = load.kv_tokens_capacity;
  return hello;
}

void WorkerImpl::start() {
  asio::post(io_, [this] { report_.start(); });
  io_thread_ = std::thread([this] {
    io_.run();
    io_done_.set_value();
  });
  engine_thread_ = std::thread([this] { loop_->run(); });
  log_info("event=worker_started worker={} role={} listen={} epoch={:016x} model={} slots={}",
           name_, role_name(context_.role), hello_.listen, hello_.epoch.value,
           tandem::quoted(hello_.model), report_.current().slots);
}

void WorkerImpl::stop() {
  if (!engine_thread_.joinable()) return;
  inbox_.push(StopRequested{});
  abort_switch_.stop();
  engine_thread_.join();
  // Transfers first: their last frames need the links.
  equipment_.stop();
  close_links();
  log_info("event=worker_stopped worker={}", name_);
}

void WorkerImpl::close_links() {
  asio::post(io_, [this] {
    report_.stop();
    listener_->stop();
    guard_.reset();
  });
  if (io_done_.get_future().wait_for(kGoodbye) != std::future_status::ready) io_.stop();
  io_thread_.join();
}

}  // namespace

Result<std::unique_ptr<Worker>> make_worker(Config config, Role role, std::string name,
                                            std::string listen) {
  if (!listen.empty()) config.link.listen = std::move(listen);
  auto secret = link::load_secret(config.link);
  if (!secret) return secret.status();
  // In the size that the role will ask for, so that its context is made once.
  const PoolConfig& pool = config.pool(role);
  const int threads = role == Role::kPartitioned
                          ? divide(pool.threads, {}, config.share).decode_threads
                          : pool.threads;
  auto engine = make_engine(config, pool.slots, threads);
  if (!engine) return engine.status();
  auto worker = std::make_unique<WorkerImpl>(std::move(config), role, std::move(name),
                                             std::move(*engine), std::move(*secret));
  TANDEM_RETURN_IF_ERROR(worker->prepare());
  return std::unique_ptr<Worker>(std::move(worker));
}

}  // namespace tandem::worker

#include "worker/worker.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <thread>

#include "common/log.h"
#include "common/random.h"
#include "worker/engine_loop.h"
#include "worker/link_front.h"

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
        role_(role),
        name_(std::move(name)),
        engine_(std::move(engine)),
        guard_(asio::make_work_guard(io_)),
        link_{config_.link, std::move(secret), [this] { return hello_; }},
        abort_switch_(io_, *engine_) {}

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
  void close_links();

  const Config config_;
  const Role role_;
  const std::string name_;
  const std::unique_ptr<Engine> engine_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  link::Hello hello_;
  const link::LinkContext link_;
  Inbox inbox_;
  AbortSwitch abort_switch_;
  std::vector<std::unique_ptr<transfer::Transport>> transports_;
  std::unique_ptr<transfer::Sender> sender_;
  std::unique_ptr<transfer::Receiver> receiver_;
  std::unique_ptr<LoadReport> report_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<LinkFront> front_;
  std::unique_ptr<link::Listener> listener_;
  std::promise<void> io_done_;
  std::thread io_thread_;
  std::thread engine_thread_;
};

Status WorkerImpl::prepare() {
  if (role_ != Role::kCoupled) transports_ = transfer::make_transports(config_);
  std::vector<transfer::Transport*> transports;
  for (const auto& transport : transports_) transports.push_back(transport.get());
  if (role_ == Role::kPrefill) {
    sender_ = transfer::make_sender(io_, link_, config_, engine_->kv_layout(), transports);
  } else if (role_ == Role::kDecode) {
    auto receiver = transfer::make_receiver(io_, config_, engine_->kv_layout(), transports);
    if (!receiver) return receiver.status().with_context("landing memory");
    receiver_ = std::move(*receiver);
  }
  report_ = std::make_unique<LoadReport>(io_, config_, name_, sender_.get(), receiver_.get());
  const WorkContext context{config_, name_,         role_,    *engine_,
                            inbox_,  abort_switch_, *report_, SystemClock::get()};
  loop_ = std::make_unique<EngineLoop>(context, role_ == Role::kPrefill
                                                    ? make_prefill_work(context, sender_.get())
                                                    : make_decode_work(context, receiver_.get()));
  fill_hello();
  front_ = std::make_unique<LinkFront>(context, hello_, receiver_.get());
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
  hello_.epoch.value = random_u64();
  hello_.model = model.name;
  hello_.model_digest = model.digest;
  hello_.tokenizer_digest = model.tokenizer_digest;
  hello_.kv_layout_digest = engine_->kv_layout().digest();
  hello_.engine = config_.model.engine;
  hello_.role = role_;
  hello_.slots = engine_->sequences_max();
  hello_.kv_tokens = int64_t{engine_->sequences_max()} * model.context;
  hello_.kv_bytes_per_token = static_cast<int64_t>(engine_->kv_layout().bytes_per_token());
  hello_.context = model.context;
  hello_.chunk_tokens = model.chunk_tokens;
  hello_.exact_batch_max = model.exact_batch_max;
  for (const auto& transport : transports_) hello_.transports.emplace_back(transport->name());
}

void WorkerImpl::start() {
  asio::post(io_, [this] { report_->start(); });
  io_thread_ = std::thread([this] {
    io_.run();
    io_done_.set_value();
  });
  engine_thread_ = std::thread([this] { loop_->run(); });
  log_info("event=worker_started worker={} role={} listen={} epoch={:016x} model={} slots={}",
           name_, role_name(role_), hello_.listen, hello_.epoch.value, tandem::quoted(hello_.model),
           hello_.slots);
}

void WorkerImpl::stop() {
  if (!engine_thread_.joinable()) return;
  inbox_.push(StopRequested{});
  abort_switch_.stop();
  engine_thread_.join();
  // Transfers first: their last frames need the links.
  if (sender_) sender_->stop();
  if (receiver_) receiver_->stop();
  close_links();
  log_info("event=worker_stopped worker={}", name_);
}

void WorkerImpl::close_links() {
  asio::post(io_, [this] {
    report_->stop();
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
  const PoolConfig& pool = config.pool(role);
  auto engine = make_engine(config, pool.slots, pool.threads);
  if (!engine) return engine.status();
  auto worker = std::make_unique<WorkerImpl>(std::move(config), role, std::move(name),
                                             std::move(*engine), std::move(*secret));
  TANDEM_RETURN_IF_ERROR(worker->prepare());
  return std::unique_ptr<Worker>(std::move(worker));
}

}  // namespace tandem::worker

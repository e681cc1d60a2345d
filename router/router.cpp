#include "router/router.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <thread>

#include "common/log.h"
#include "router/admin.h"
#include "router/http_server.h"
#include "router/routes.h"
#include "router/services.h"
#include "router/templates/template_renderer.h"

namespace tandem::router {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds kDrainPoll{20};
// For the error frames of requests that a shutdown ends.
constexpr std::chrono::seconds kFarewell{2};

std::string served_name(const ModelConfig& model) {
  if (!model.name.empty()) return model.name;
  return model.path.empty() ? model.engine : std::filesystem::path(model.path).stem().string();
}

}  // namespace

// Members in order of dependence: what is destroyed first uses what follows it in time, never the
// other way.
struct Router::State {
  explicit State(const Config& config_in)
      : config(config_in),
        model(served_name(config.model)),
        metrics(config, model),
        stages(config),
        timeline(static_cast<size_t>(config.router.timelines_max), SystemClock::get()),
        work_threads(config.router.tokenizer_threads,
                     static_cast<size_t>(config.router.requests_max)),
        guard(asio::make_work_guard(link_io)) {}

  Status start_template_helper();
  Status build();
  bool wait_for_exchanges(Duration at_most);

  const Config config;
  const std::string model;
  const RouterMetrics metrics;
  Stages stages;
  Timeline timeline;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<templates::TemplateRenderer> renderer;
  std::optional<Preparer> preparer;
  WorkThreads work_threads;
  std::unique_ptr<DecisionFile> decisions;
  asio::io_context link_io{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard;
  std::optional<WorkerPool> pool;
  std::optional<Dispatcher> dispatcher;
  std::unique_ptr<Services> services;
  std::optional<HttpServer> http;
  std::optional<AdminServer> admin;
  std::thread link_thread;
  bool stopped = false;
};

Router::Router(const Config& config) : state_(std::make_unique<State>(config)) {}

Router::~Router() { stop(); }

// Chats need it; a model without a template does not.
Status Router::State::start_template_helper() {
  if (tokenizer->chat_template().empty()) return {};
  Result<templates::RendererOptions> options = templates::find_helper(config.router.python);
  if (!options.ok()) return options.status();
  options->helpers = config.router.tokenizer_threads;
  Result<std::unique_ptr<templates::TemplateRenderer>> made =
      templates::TemplateRenderer::create(std::move(*options));
  if (!made.ok()) return made.status();
  renderer = std::move(*made);
  return {};
}

Status Router::State::build() {
  Result<std::string> secret = link::load_secret(config.link);
  if (!secret.ok()) return secret.status();
  Result<std::unique_ptr<Tokenizer>> made = make_tokenizer(config);
  if (!made.ok()) return made.status().with_context("tokenizer");
  tokenizer = std::move(*made);
  Result<std::string> digest = configured_model_digest(config);
  if (!digest.ok()) return digest.status().with_context("model");
  if (const std::string& file = config.router.decision_log; !file.empty()) {
    auto opened = DecisionFile::open(file, config.router.decision_log_bytes_max);
    if (!opened.ok()) return opened.status();
    decisions = std::move(*opened);
  }
  if (const Status status = start_template_helper(); !status.ok())
    log_warn("event=chat_off reason={}", tandem::quoted(status.message()));
  preparer.emplace(Preparer::Parts{
      .config = config, .tokenizer = *tokenizer, .renderer = renderer.get(), .served = {model}});
  pool.emplace(config, link_io, std::move(*secret),
               WorkerPool::Identity{.model = model,
                                    .tokenizer_digest = tokenizer->digest(),
                                    .model_digest = std::move(*digest),
                                    .context = config.model.context});
  dispatcher.emplace(Dispatcher::Parts{.config = config,
                                       .clock = SystemClock::get(),
                                       .io = link_io,
                                       .pool = *pool,
                                       .timeline = timeline,
                                       .stages = stages,
                                       .metrics = metrics,
                                       .decisions = decisions.get(),
                                       .vocab = tokenizer->vocab()});
  services.reset(new Services{.config = config,
                              .clock = SystemClock::get(),
                              .tokenizer = *tokenizer,
                              .preparer = *preparer,
                              .work_threads = work_threads,
                              .pool = *pool,
                              .dispatcher = *dispatcher,
                              .timeline = timeline,
                              .stages = stages,
                              .metrics = metrics,
                              .model = model,
                              .created = SystemClock::get().wall_us() / 1'000'000});
  http.emplace(config.router, metrics,
               [this](Exchange& exchange) { return route(*services, exchange); });
  admin.emplace(*services);
  return {};
}

Status Router::start() {
  TANDEM_RETURN_IF_ERROR(state_->build());
  TANDEM_RETURN_IF_ERROR(state_->admin->start());
  if (Status status = state_->http->start(); !status.ok()) {
    state_->admin->stop();
    return status;
  }
  State* state = state_.get();
  asio::post(state->link_io, [state] {
    state->pool->start(*state->dispatcher);
    state->dispatcher->start();
  });
  state->link_thread = std::thread([state] { state->link_io.run(); });
  log_info("event=router_started listen={} admin={} model={}", address(), admin_address(),
           tandem::quoted(state->model));
  return {};
}

std::string Router::address() const { return state_->http ? state_->http->address() : ""; }
std::string Router::admin_address() const { return state_->admin ? state_->admin->address() : ""; }
bool Router::ready() const { return state_->pool && state_->pool->ready(); }

// A thread that has nothing else to do looks now and then; shutting down is no hot path.
bool Router::State::wait_for_exchanges(Duration at_most) {
  const TimePoint until = SystemClock::get().now() + at_most;
  std::promise<void> never;
  const std::future<void> pause = never.get_future();
  while (http->exchanges() > 0) {
    if (SystemClock::get().now() >= until) return false;
    pause.wait_for(kDrainPoll);
  }
  return true;
}

void Router::drain() {
  if (!state_->http) return;
  state_->services->draining = true;
  state_->http->drain();
  log_info("event=router_draining requests={}", state_->http->exchanges());
  const bool done = state_->wait_for_exchanges(state_->config.router.drain_deadline);
  log_info("event=router_drained complete={}", done);
}

void Router::stop() {
  if (!state_->http || std::exchange(state_->stopped, true)) return;
  state_->services->draining = true;
  state_->http->drain();
  if (state_->link_thread.joinable()) {
    state_->dispatcher->stop(Status(ErrorCode::kUnavailable, "the router is shutting down"));
    state_->wait_for_exchanges(kFarewell);
  }
  state_->admin->stop();
  state_->http->stop();
  if (state_->renderer) state_->renderer->stop();
  state_->work_threads.stop();
  if (state_->link_thread.joinable()) {
    State* state = state_.get();
    asio::post(state->link_io, [state] {
      state->pool->stop();
      state->guard.reset();
    });
    // Sessions say goodbye; the link thread ends when they have, or is ended.
    const TimePoint until = SystemClock::get().now() + kFarewell;
    std::promise<void> never;
    const std::future<void> pause = never.get_future();
    while (!state->link_io.stopped() && SystemClock::get().now() < until)
      pause.wait_for(kDrainPoll);
    state->link_io.stop();
    state->link_thread.join();
  }
  log_info("event=router_stopped");
}

}  // namespace tandem::router

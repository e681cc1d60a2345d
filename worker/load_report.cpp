#include "worker/load_report.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

namespace tandem::worker {
namespace {

constexpr auto kPushInterval = std::chrono::milliseconds(50);

metrics::Labels with(metrics::Labels labels, metrics::Label more) {
  labels.push_back(std::move(more));
  return labels;
}

}  // namespace

struct LoadReport::Timer {
  explicit Timer(boost::asio::io_context& io) : soon(io), heartbeat(io) {}
  boost::asio::steady_timer soon;
  boost::asio::steady_timer heartbeat;
};

LoadReport::LoadReport(boost::asio::io_context& io, const Config& config, const std::string& worker)
    : io_(io),
      config_(config),
      worker_(worker),
      label_({{"worker", worker}}),
      prompt_tokens_(metrics::counter("tandem_prefill_tokens_total", "Prompt tokens by source",
                                      with(label_, {"source", "computed"}))),
      decode_tokens_(
          metrics::counter("tandem_decode_tokens_total", "Tokens sampled by decode steps", label_)),
      decode_steps_(metrics::counter("tandem_decode_steps_total", "Batched decode steps", label_)),
      busy_seconds_(metrics::counter("tandem_engine_busy_seconds_total",
                                     "Time inside the engine's compute", label_)),
      kv_used_(metrics::gauge("tandem_kv_tokens", "KV tokens by state",
                              with(label_, {"state", "used"}))),
      kv_reserved_(metrics::gauge("tandem_kv_tokens", "KV tokens by state",
                                  with(label_, {"state", "reserved"}))),
      kv_capacity_(metrics::gauge("tandem_kv_tokens", "KV tokens by state",
                                  with(label_, {"state", "capacity"}))),
      transfers_in_flight_(
          metrics::gauge("tandem_transfers_in_flight", "KV transfers that are open", label_)),
      landing_used_(metrics::gauge("tandem_landing_bytes", "Landing memory by state",
                                   with(label_, {"state", "used"}))),
      landing_capacity_(metrics::gauge("tandem_landing_bytes", "Landing memory by state",
                                       with(label_, {"state", "capacity"}))),
      transfer_seconds_(metrics::histogram("tandem_kv_transfer_seconds",
                                           "Of a KV transfer, first row to last",
                                           metrics::kTransferBounds, label_)),
      transfer_exposed_seconds_(
          metrics::histogram("tandem_kv_transfer_exposed_seconds",
                             "Of a KV transfer, from the end of the prompt's computing to the join",
                             metrics::kTransferBounds, label_)),
      timer_(std::make_unique<Timer>(io)) {}

LoadReport::~LoadReport() = default;

LoadReport::TransferSeries LoadReport::series_of(std::string_view direction) const {
  const auto labels = with(label_, {"direction", std::string(direction)});
  TransferSeries made;
  made.bytes = metrics::counter("tandem_kv_transfer_bytes_total", "KV bytes moved", labels);
  made.done = metrics::counter("tandem_kv_transfers_total", "KV transfers completed", labels);
  made.retired = metrics::counter("tandem_kv_segments_retired_total",
                                  "Landing segments retired after a peer failed", labels);
  made.stalls = metrics::counter("tandem_kv_transfer_credit_stalls_total",
                                 "Units that waited for landing room", labels);
  return made;
}

void LoadReport::watch(const transfer::Sender& sender) {
  Watched watched{.sender = &sender, .series = series_of("out")};
  const std::lock_guard lock(mutex_);
  watched_.push_back(std::move(watched));
}

void LoadReport::watch(const transfer::Receiver& receiver, int64_t landing_bytes) {
  Watched watched{.receiver = &receiver, .series = series_of("in")};
  const std::lock_guard lock(mutex_);
  landing_bytes_ += landing_bytes;
  landing_capacity_.set(static_cast<double>(landing_bytes_));
  watched_.push_back(std::move(watched));
}

void LoadReport::publish(const link::Load& load) {
  {
    const std::lock_guard lock(mutex_);
    load_ = load;
    if (std::exchange(push_pending_, true)) return;
  }
  boost::asio::post(io_, [this] { push_soon(); });
}

void LoadReport::publish_prompts(const Prompts& prompts) {
  {
    const std::lock_guard lock(mutex_);
    prompts_ = prompts;
    if (std::exchange(push_pending_, true)) return;
  }
  boost::asio::post(io_, [this] { push_soon(); });
}

link::Load LoadReport::current() const {
  const std::lock_guard lock(mutex_);
  return load_;
}

void LoadReport::count_prompt(const Chunk& chunk, Duration busy) {
  prompt_tokens_.add(chunk.count);
  busy_seconds_.add(to_seconds(busy));
  sample({chunk.first, chunk.count, 0, 0, to_ms(busy)});
}

void LoadReport::sample(const link::StepSample& sample) {
  const std::lock_guard lock(mutex_);
  if (samples_.size() < link::kSamplesMax) samples_.push_back(sample);
}

void LoadReport::count_transfer(const transfer::IncomingProgress& progress,
                                TimePoint joined) const {
  transfer_seconds_.observe(static_cast<double>(progress.last_us - progress.first_us) / 1e6);
  transfer_exposed_seconds_.observe(to_seconds(joined - progress.sealed_at));
}

void LoadReport::count_step(int tokens, Duration busy) const {
  decode_tokens_.add(tokens);
  decode_steps_.add();
  busy_seconds_.add(to_seconds(busy));
}

void LoadReport::count_transfer_failure(ErrorCode code) {
  metrics::counter("tandem_kv_transfer_failures_total", "KV transfers that failed, by reason",
                   with(label_, {"reason", std::string(error_code_name(code))}))
      .add();
}

void LoadReport::start() { arm_heartbeat(); }

void LoadReport::stop() {
  stopped_ = true;
  timer_->soon.cancel();
  timer_->heartbeat.cancel();
  routers_.clear();
}

void LoadReport::router_opened(const link::SessionPtr& session) {
  link::Load load = snapshot();
  const std::vector<link::StepSample> taken = std::exchange(load.samples, first_samples_);
  static_cast<void>(session->send(link::FrameKind::kLoad, load.encode()));
  for (const link::StepSample& sampled : taken) sample(sampled);  // The next Load is everybody's
  routers_.push_back(session);
}

void LoadReport::router_gone(const link::Session* session) {
  std::erase_if(routers_, [&](const link::SessionPtr& router) { return router.get() == session; });
}

void LoadReport::push_soon() {
  if (stopped_) return;
  timer_->soon.expires_after(kPushInterval);
  timer_->soon.async_wait([this](boost::system::error_code error) {
    if (!error && !stopped_) push_now();
  });
}

void LoadReport::arm_heartbeat() {
  if (stopped_) return;
  timer_->heartbeat.expires_after(config_.link.heartbeat);
  timer_->heartbeat.async_wait([this](boost::system::error_code error) {
    if (error || stopped_) return;
    push_now();
    arm_heartbeat();
  });
}

void LoadReport::push_now() {
  const std::string body = snapshot().encode();
  for (const link::SessionPtr& router : routers_) {
    static_cast<void>(router->send(link::FrameKind::kLoad, body));
  }
}

link::Load LoadReport::snapshot() {
  link::Load load;
  {
    const std::lock_guard lock(mutex_);
    push_pending_ = false;
    load = load_;
    load.prefill_backlog_tokens += prompts_.backlog_tokens;
    if (prompts_.us_per_token > 0) load.prefill_us_per_token = prompts_.us_per_token;
    load.samples = std::exchange(samples_, {});
  }
  read_transfers(load);
  kv_used_.set(static_cast<double>(load.kv_tokens_used));
  kv_reserved_.set(static_cast<double>(load.kv_tokens_reserved));
  kv_capacity_.set(static_cast<double>(load.kv_tokens_capacity));
  transfers_in_flight_.set(load.transfers_in_flight);
  load.counters = metrics::values_with({"worker", worker_});
  return load;
}

// On the io_context thread, which alone uses the series.
void LoadReport::read_transfers(link::Load& load) {
  std::vector<Watched*> all;
  {
    const std::lock_guard lock(mutex_);
    for (Watched& watched : watched_) all.push_back(&watched);
  }
  int64_t landing_used = 0;
  for (Watched* watched : all) {
    if (watched->sender) {
      load.transfers_in_flight += watched->sender->streams_open();
      watched->series.add(watched->sender->totals());
    } else {
      load.transfers_in_flight += watched->receiver->streams_open();
      landing_used += watched->receiver->landing_bytes_used();
      watched->series.add(watched->receiver->totals());
    }
  }
  landing_used_.set(static_cast<double>(landing_used));
}

void LoadReport::TransferSeries::add(const transfer::TransferTotals& totals) {
  const auto count = [](const metrics::Counter& counter, auto& counted, auto now) {
    counter.add(static_cast<double>(now - counted));
    counted = now;
  };
  count(bytes, last.bytes, totals.bytes);
  count(done, last.transfers_done, totals.transfers_done);
  count(retired, last.segments_retired, totals.segments_retired);
  count(stalls, last.credit_stalls, totals.credit_stalls);
}

}  // namespace tandem::worker

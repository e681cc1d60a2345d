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

LoadReport::LoadReport(boost::asio::io_context& io, const Config& config, const std::string& worker,
                       const transfer::Sender* sender, const transfer::Receiver* receiver)
    : io_(io),
      config_(config),
      worker_(worker),
      sender_(sender),
      receiver_(receiver),
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
      timer_(std::make_unique<Timer>(io)) {
  const auto series = [&](std::string_view direction) {
    const auto labels = with(label_, {"direction", std::string(direction)});
    TransferSeries made;
    made.bytes = metrics::counter("tandem_kv_transfer_bytes_total", "KV bytes moved", labels);
    made.done = metrics::counter("tandem_kv_transfers_total", "KV transfers completed", labels);
    made.retired = metrics::counter("tandem_kv_segments_retired_total",
                                    "Landing segments retired after a peer failed", labels);
    made.seconds = metrics::counter("tandem_kv_transfer_seconds_total",
                                    "First to last byte, summed over transfers", labels);
    made.exposed = metrics::counter("tandem_kv_transfer_exposed_seconds_total",
                                    "After the last layer was computed, summed", labels);
    made.stalls = metrics::counter("tandem_kv_transfer_credit_stalls_total",
                                   "Units that waited for landing room", labels);
    return made;
  };
  if (receiver_) in_ = series("in");
  if (sender_) out_ = series("out");
}

LoadReport::~LoadReport() = default;

void LoadReport::publish(const link::Load& load) {
  {
    const std::lock_guard lock(mutex_);
    load_ = load;
    if (std::exchange(push_pending_, true)) return;
  }
  boost::asio::post(io_, [this] { push_soon(); });
}

void LoadReport::count_prompt(int tokens, Duration busy) const {
  prompt_tokens_.add(tokens);
  busy_seconds_.add(to_seconds(busy));
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
  routers_.push_back(session);
  static_cast<void>(session->send(link::FrameKind::kLoad, snapshot().encode()));
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
  }
  if (receiver_) load.transfers_in_flight = receiver_->streams_open();
  if (sender_) load.transfers_in_flight = sender_->streams_open();
  add_transfer_totals();
  kv_used_.set(static_cast<double>(load.kv_tokens_used));
  kv_reserved_.set(static_cast<double>(load.kv_tokens_reserved));
  kv_capacity_.set(static_cast<double>(load.kv_tokens_capacity));
  transfers_in_flight_.set(load.transfers_in_flight);
  load.counters = metrics::values_with({"worker", worker_});
  return load;
}

void LoadReport::add_transfer_totals() {
  if (receiver_) add(in_, receiver_->totals());
  if (sender_) add(out_, sender_->totals());
}

void LoadReport::add(TransferSeries& series, const transfer::TransferTotals& totals) {
  const auto count = [](const metrics::Counter& counter, auto& last, auto now) {
    counter.add(static_cast<double>(now - last));
    last = now;
  };
  count(series.bytes, series.last.bytes, totals.bytes);
  count(series.done, series.last.transfers_done, totals.transfers_done);
  count(series.retired, series.last.segments_retired, totals.segments_retired);
  count(series.seconds, series.last.seconds, totals.seconds);
  count(series.exposed, series.last.exposed_seconds, totals.exposed_seconds);
  count(series.stalls, series.last.credit_stalls, totals.credit_stalls);
}

}  // namespace tandem::worker

#include "bench/load_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <unordered_set>

#include "bench/interrupt.h"
#include "bench/progress.h"
#include "bench/request_body.h"
#include "bench/stream_request.h"

namespace tandem::bench {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr int kConcurrencyDefault = 8;
constexpr double kMixedDurationDefaultS = 60.0;
// A server that refuses so many connections in a row is gone; hammering it would only fill the
// records.
constexpr int kRefusedMax = 100;

class LoadRun {
 public:
  LoadRun(const Options& options, const Server& server, Workload workload, const std::string& label)
      : options_(options),
        server_(server),
        workload_(std::move(workload)),
        body_(options, server.model),
        headers_(options.headers),
        progress_(options.progress, label),
        tick_(io_),
        arrival_(io_),
        long_arrival_(io_),
        stop_(io_) {
    if (!options.api_key.empty()) headers_.push_back("Authorization: Bearer " + options.api_key);
    headers_.push_back("Accept: text/event-stream");
    context_.keep_text = options.save_detailed;
  }

  Result<RunRecords> run() {
    error_code error;
    const auto found =
        asio::ip::tcp::resolver(io_).resolve(server_.url.host, server_.url.port, error);
    if (error) {
      return Status(ErrorCode::kUnavailable,
                    fmt::format("{}: {}", server_.url.host_port(), error.message()));
    }
    for (const auto& entry : found) context_.endpoints.push_back(entry.endpoint());
    context_.started = SystemClock::get().now();
    begin();
    on_tick();
    io_.run();
    records_.duration_s = context_.elapsed_s();
    if (records_.gaps_until_s == 0.0) records_.gaps_until_s = records_.duration_s;
    progress_.finish(view());
    return std::move(records_);
  }

 private:
  bool mixed() const { return options_.scenario == Scenario::kMixed; }
  double planned_duration_s() const {
    return mixed() && options_.duration_s == 0.0 ? kMixedDurationDefaultS : options_.duration_s;
  }

  void begin() {
    // Arrivals that were made for the duration end by themselves; the last falls on its very end.
    const bool ends_itself =
        options_.open_loop() && options_.trace.empty() && !options_.num_prompts;
    if (const double duration = planned_duration_s(); duration > 0.0 && !ends_itself) {
      at(stop_, duration, [this] { stop_sending(""); });
    }
    if (options_.open_loop()) {
      schedule_arrival();
      return;
    }
    const int concurrency = options_.concurrency > 0 ? options_.concurrency : kConcurrencyDefault;
    const int users = mixed() ? options_.mixed.streams : concurrency;
    for (int i = 0; i < users; ++i) send_next();
    if (mixed() && options_.mixed.long_every_s > 0.0) schedule_long(options_.mixed.long_every_s);
  }

  // Calls `then` at this time of the run, unless sending has stopped.
  template <class Then>
  void at(asio::steady_timer& timer, double time_s, Then then) {
    timer.expires_at(context_.started +
                     std::chrono::duration_cast<Duration>(std::chrono::duration<double>(time_s)));
    timer.async_wait([this, then](error_code error) {
      if (!error && !stopped_) then();
    });
  }

  void schedule_arrival() {
    auto request = workload_.next();
    if (!request) {
      stop_sending("");
      return;
    }
    at(arrival_, request->at_s, [this, planned = std::move(*request)] {
      if (options_.concurrency > 0 && live_.size() >= static_cast<size_t>(options_.concurrency)) {
        queue_.push_back(planned);
      } else {
        send(planned, planned.at_s);
      }
      schedule_arrival();
    });
  }

  void schedule_long(double time_s) {
    at(long_arrival_, time_s, [this, time_s] {
      send(workload_.next_long(), time_s);
      schedule_long(time_s + options_.mixed.long_every_s);
    });
  }

  void send_next() {
    if (stopped_) return;
    if (auto request = workload_.next()) {
      send(*request, context_.elapsed_s());
    } else {
      stop_sending("");
    }
  }

  void send(const PlannedRequest& planned, double due_s) {
    RequestRecord record;
    record.index = planned.index;
    record.group = planned.group;
    record.due_s = due_s;
    record.input_tokens = std::max(planned.prompt.tokens, server_.prompts.overhead() + 1);
    record.output_planned = planned.output_tokens;
    const std::string body =
        body_.make(server_.prompts.make(planned.prompt), planned.output_tokens);
    auto request = std::make_shared<StreamRequest>(
        io_, context_, std::move(record),
        wire_text(server_.url, {"POST", body_.path(), body, headers_}),
        context_.elapsed_s() + options_.request_timeout_s,
        [this](StreamRequest& done, bool connected) { on_done(done, connected); });
    live_.insert(request);
    request->start();
  }

  void on_done(StreamRequest& request, bool connected) {
    const bool main = request.record.group == Group::kMain;
    failed_ += request.record.ok ? 0 : 1;
    refused_in_row_ = connected ? 0 : refused_in_row_ + 1;
    records_.requests.push_back(std::move(request.record));
    live_.erase(request.shared_from_this());
    if (refused_in_row_ >= kRefusedMax && !stopped_) {
      queue_.clear();
      stop_sending("the server refuses connections");
    }
    if (!queue_.empty()) {
      const PlannedRequest planned = std::move(queue_.front());
      queue_.pop_front();
      send(planned, planned.at_s);
    } else if (main && !options_.open_loop()) {
      send_next();
    }
    end_if_idle();
  }

  void stop_sending(const std::string& reason) {
    if (stopped_) return;
    stopped_ = true;
    records_.stopped_because = reason;
    if (mixed()) records_.gaps_until_s = context_.elapsed_s();
    arrival_.cancel();
    long_arrival_.cancel();
    stop_.cancel();
    end_if_idle();
  }

  void end_if_idle() {
    if (stopped_ && live_.empty() && queue_.empty()) tick_.cancel();
  }

  // Deadlines, interrupts and the progress line.
  void on_tick() {
    const double now_s = context_.elapsed_s();
    if (now_s > options_.max_seconds || interrupted()) {
      const std::string reason = interrupted() ? "interrupted" : "cut off by --max-seconds";
      queue_.clear();
      stop_sending(reason);
      records_.stopped_because = reason;
      for (const auto& request : live_) request->abort(reason);
    }
    for (const auto& request : live_) {
      if (now_s > request->deadline_s()) request->abort("no end within --request-timeout");
    }
    progress_.update(view());
    if (stopped_ && live_.empty() && queue_.empty()) return;
    tick_.expires_after(kTick);
    tick_.async_wait([this](error_code error) {
      if (!error) on_tick();
    });
  }

  ProgressView view() const {
    return {.elapsed_s = context_.elapsed_s(),
            .duration_s = planned_duration_s(),
            .done = records_.requests.size(),
            .failed = failed_,
            .total = workload_.total(),
            .waiting = context_.gauges.waiting,
            .running = context_.gauges.running,
            .tokens = context_.gauges.tokens};
  }

  const Options& options_;
  const Server& server_;
  Workload workload_;
  const RequestBody body_;
  std::vector<std::string> headers_;
  Progress progress_;
  RunRecords records_;
  StreamContext context_;
  asio::io_context io_{1};
  asio::steady_timer tick_, arrival_, long_arrival_, stop_;
  std::unordered_set<std::shared_ptr<StreamRequest>> live_;
  std::deque<PlannedRequest>
      queue_;             // Open loop with a cap: arrived, not sent. At most the workload.
  bool stopped_ = false;  // Nothing new is sent
  size_t failed_ = 0;
  int refused_in_row_ = 0;
};

}  // namespace

Result<RunRecords> run_load(const Options& options, const Server& server,
                            const std::string& label) {
  auto workload = Workload::make(options);
  if (!workload.ok()) return workload.status();
  return LoadRun(options, server, std::move(*workload), label).run();
}

}  // namespace tandem::bench

// LoadReport: what the worker tells all routers about itself, and its metrics.
//
// The engine thread publishes values and counts; the io_context thread pushes them to every router:
// soon after a change, at most every 50 ms, and every heartbeat. start() and stop() run on the
// io_context thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/config.h"
#include "common/metrics.h"
#include "link/messages.h"
#include "link/session.h"
#include "transfer/stream.h"

namespace tandem::worker {

class LoadReport {
 public:
  // `sender` and `receiver` may be null. All outlive the report.
  LoadReport(boost::asio::io_context& io, const Config& config, const std::string& worker,
             const transfer::Sender* sender, const transfer::Receiver* receiver);
  ~LoadReport();

  // Engine thread.
  void publish(const link::Load& load);
  void count_prompt(int tokens, Duration busy) const;
  void count_step(int tokens, Duration busy) const;
  void count_transfer_failure(ErrorCode code);

  // io_context thread.
  void start();
  void stop();
  void router_opened(const link::SessionPtr& session);
  void router_gone(const link::Session* session);

 private:
  struct Timer;

  void push_soon();
  void arm_heartbeat();
  void push_now();
  link::Load snapshot();
  void add_transfer_totals();

  boost::asio::io_context& io_;
  const Config& config_;
  const std::string worker_;
  const transfer::Sender* sender_;
  const transfer::Receiver* receiver_;
  const metrics::Labels label_;
  const metrics::Counter prompt_tokens_, decode_tokens_, decode_steps_, busy_seconds_;
  const metrics::Gauge kv_used_, kv_reserved_, kv_capacity_, transfers_in_flight_;

  struct TransferSeries {
    metrics::Counter bytes, done, retired, seconds, exposed, stalls;
    transfer::TransferTotals last;
  };
  TransferSeries in_, out_;
  static void add(TransferSeries& series, const transfer::TransferTotals& totals);

  // io_context thread.
  std::unique_ptr<Timer> timer_;
  std::vector<link::SessionPtr> routers_;
  bool stopped_ = false;

  std::mutex mutex_;
  link::Load load_;            // Guarded by mutex_
  bool push_pending_ = false;  // Guarded by mutex_
};

}  // namespace tandem::worker

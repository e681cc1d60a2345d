// LoadReport: what the worker tells all routers about itself, and its metrics.
//
// Engine threads publish values, samples and counts; the io_context thread pushes them to every
// router: soon after a change, at most every 50 ms, and every heartbeat. start() and stop() run on
// the io_context thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/config.h"
#include "common/metrics.h"
#include "engine/chunk_grid.h"
#include "link/messages.h"
#include "link/session.h"
#include "transfer/stream.h"

namespace tandem::worker {

class LoadReport {
 public:
  // Both outlive the report.
  LoadReport(boost::asio::io_context& io, const Config& config, const std::string& worker);
  ~LoadReport();

  // Any thread. Their totals count from now on, as long as the report lives.
  void watch(const transfer::Sender& sender);
  void watch(const transfer::Receiver& receiver, int64_t landing_bytes);

  // Engine threads.
  void publish(const link::Load& load);
  // The prompts of a second engine thread, which come on top of the load.
  struct Prompts {
    int64_t backlog_tokens = 0;
    double us_per_token = 0;  // 0: that of the load
  };
  void publish_prompts(const Prompts& prompts);
  void count_prompt(const Chunk& chunk, Duration busy);
  void count_step(int tokens, Duration busy) const;
  void count_transfer(const transfer::IncomingProgress& progress, TimePoint joined) const;
  void count_transfer_failure(ErrorCode code);
  // For the routers' cost models; what does not fit the next Load is dropped.
  void sample(const link::StepSample& sample);
  // Every router gets these first, whenever it comes. Requires: not started.
  void set_first_samples(std::vector<link::StepSample> samples) {
    first_samples_ = std::move(samples);
  }
  // What routers hear of this worker's role and slots.
  link::Load current() const;

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

  struct TransferSeries {
    metrics::Counter bytes, done, retired, stalls;
    transfer::TransferTotals last;
    void add(const transfer::TransferTotals& totals);
  };
  struct Watched {
    const transfer::Sender* sender = nullptr;  // One of the two
    const transfer::Receiver* receiver = nullptr;
    TransferSeries series;
  };
  TransferSeries series_of(std::string_view direction) const;
  void read_transfers(link::Load& load);

  boost::asio::io_context& io_;
  const Config& config_;
  const std::string worker_;
  const metrics::Labels label_;
  const metrics::Counter prompt_tokens_, decode_tokens_, decode_steps_, busy_seconds_;
  const metrics::Gauge kv_used_, kv_reserved_, kv_capacity_, transfers_in_flight_;
  const metrics::Gauge landing_used_, landing_capacity_;
  const metrics::Histogram transfer_seconds_, transfer_exposed_seconds_;
  std::vector<link::StepSample> first_samples_;

  // io_context thread.
  std::unique_ptr<Timer> timer_;
  std::vector<link::SessionPtr> routers_;
  bool stopped_ = false;

  mutable std::mutex mutex_;
  link::Load load_;  // Guarded by mutex_, as all below
  Prompts prompts_;
  std::vector<link::StepSample> samples_;
  int64_t landing_bytes_ = 0;
  std::list<Watched> watched_;  // Its elements stay where they are
  bool push_pending_ = false;
};

}  // namespace tandem::worker

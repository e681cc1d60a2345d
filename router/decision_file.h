// DecisionFile: writes the log of live decisions (scheduler/decision_log.h) beside the link thread,
// which must not wait for a disk. At most RouterConfig::decision_log_bytes_max: then the file
// becomes FILE.1, in place of the one before, and a new one begins.
//
// Owned by the router. write() from any thread; records that find the queue full are counted and
// lost. The destructor writes what is queued, and joins.
#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "common/bounded_queue.h"
#include "common/metrics.h"
#include "common/status.h"
#include "scheduler/decision_log.h"

namespace tandem::router {

class DecisionFile {
 public:
  static Result<std::unique_ptr<DecisionFile>> open(std::string path, int64_t bytes_max);
  ~DecisionFile();

  void write(scheduler::DecisionRecord record);

 private:
  DecisionFile(std::string path, int64_t bytes_max);
  void run();
  // Opens a new file; with a full one, after it was set aside.
  void open_file(bool set_aside);

  const std::string path_;
  const int64_t bytes_max_;
  std::ofstream out_;
  int64_t bytes_ = 0;
  metrics::Counter lines_, lost_;
  BoundedQueue<scheduler::DecisionRecord> queue_;
  std::thread thread_;
};

}  // namespace tandem::router

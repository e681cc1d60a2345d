// WorkThreads: where the router does what may take long (parsing, templates, tokenising), so that
// its I/O threads never do. Owned by the router; post() from any thread. stop() lets running jobs
// end, drops what waits, and joins.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "common/bounded_queue.h"
#include "common/status.h"

namespace tandem::router {

class WorkThreads {
 public:
  using Job = std::function<void()>;

  WorkThreads(int threads, size_t queue_max);
  ~WorkThreads();

  // False when the queue is full or stopped.
  bool post(Job job) { return queue_.try_push(std::move(job)); }
  size_t waiting() const { return queue_.size(); }
  void stop();

 private:
  void run();

  BoundedQueue<Job> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::router

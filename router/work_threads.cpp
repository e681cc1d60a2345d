#include "router/work_threads.h"

namespace tandem::router {

WorkThreads::WorkThreads(int threads, size_t queue_max) : queue_(queue_max) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkThreads::~WorkThreads() { stop(); }

void WorkThreads::stop() {
  queue_.close();
  while (queue_.try_pop()) {
  }
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void WorkThreads::run() {
  // The deadline only bounds one wait; a closed queue ends the loop at once.
  while (!queue_.closed()) {
    if (std::optional<Job> job = queue_.pop(SystemClock::get().now() + std::chrono::seconds(10)))
      (*job)();
  }
}

}  // namespace tandem::router

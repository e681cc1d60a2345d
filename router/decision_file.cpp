#include "router/decision_file.h"

#include <cstdio>

#include "common/log.h"

namespace tandem::router {
namespace {

constexpr size_t kQueueMax = 4096;
// A record that waits here is written at latest when the queue closes.
constexpr auto kPatience = std::chrono::seconds(1);

}  // namespace

DecisionFile::DecisionFile(std::string path, int64_t bytes_max)
    : path_(std::move(path)),
      bytes_max_(bytes_max),
      lines_(metrics::counter("tandem_decision_log_lines_total", "Decisions logged")),
      lost_(metrics::counter("tandem_decision_log_lost_total", "Decisions that were not")),
      queue_(kQueueMax) {
  open_file(false);
}

Result<std::unique_ptr<DecisionFile>> DecisionFile::open(std::string path, int64_t bytes_max) {
  std::unique_ptr<DecisionFile> file(new DecisionFile(std::move(path), bytes_max));
  if (!file->out_)
    return Status(ErrorCode::kInvalidArgument,
                  "router.decision_log: cannot write to " + file->path_);
  file->thread_ = std::thread([self = file.get()] { self->run(); });
  return file;
}

DecisionFile::~DecisionFile() {
  queue_.close();
  if (thread_.joinable()) thread_.join();
}

void DecisionFile::write(scheduler::DecisionRecord record) {
  if (!queue_.try_push(std::move(record))) lost_.add();
}

void DecisionFile::open_file(bool set_aside) {
  if (set_aside) {
    out_.close();
    if (std::rename(path_.c_str(), (path_ + ".1").c_str()) != 0)
      log_warn("event=decision_log_not_rotated file={}", tandem::quoted(path_));
  }
  // Times in a log count from its start, so a new start is a new file.
  out_.open(path_, std::ios::trunc);
  bytes_ = 0;
}

void DecisionFile::run() {
  for (;;) {
    const auto record = queue_.pop(SystemClock::get().now() + kPatience);
    if (!record) {
      out_.flush();
      if (queue_.closed()) return;
      continue;
    }
    const std::string line = scheduler::decision_line(*record);
    const auto size = static_cast<int64_t>(line.size());
    if (bytes_ + size > bytes_max_) open_file(true);
    bytes_ += size;
    (out_ << line) ? lines_.add() : lost_.add();
  }
}

}  // namespace tandem::router

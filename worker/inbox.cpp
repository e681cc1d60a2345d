#include "worker/inbox.h"

namespace tandem::worker {

bool Inbox::try_push_command(Message&& command) {
  {
    const std::lock_guard lock(mutex_);
    if (commands_ >= kCommandsMax) return false;
    ++commands_;
    ++pushed_;
    messages_.push_back(std::move(command));
  }
  arrived_.notify_one();
  return true;
}

void Inbox::push(Message&& message) {
  {
    const std::lock_guard lock(mutex_);
    ++pushed_;
    messages_.push_back(std::move(message));
  }
  arrived_.notify_one();
}

void Inbox::note_landed() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(landed_, true)) return;
  }
  arrived_.notify_one();
}

std::deque<Message> Inbox::take(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  arrived_.wait_until(lock, deadline, [this] { return landed_ || !messages_.empty(); });
  landed_ = false;
  commands_ = 0;
  return std::exchange(messages_, {});
}

uint64_t Inbox::pushed() const {
  const std::lock_guard lock(mutex_);
  return pushed_;
}

bool Inbox::empty() const {
  const std::lock_guard lock(mutex_);
  return messages_.empty();
}

}  // namespace tandem::worker

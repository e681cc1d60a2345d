// Actions: what must happen after a lock is released (events of users, frames, transports), in
// order. A value of one scope: declared before the lock, so that it runs after the unlock.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace tandem::transfer {

class Actions {
 public:
  Actions() = default;
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  ~Actions() { run(); }

  void add(std::function<void()> action) {
    if (!first_) {
      first_ = std::move(action);
    } else {
      others_.push_back(std::move(action));
    }
  }
  // Requires: no lock is held.
  void run() {
    if (const auto first = std::exchange(first_, nullptr)) first();
    for (const auto& action : std::exchange(others_, {})) action();
  }

 private:
  std::function<void()> first_;  // Mostly there is one: no vector for it
  std::vector<std::function<void()>> others_;
};

}  // namespace tandem::transfer

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

  void add(std::function<void()> action) { actions_.push_back(std::move(action)); }
  // Requires: no lock is held.
  void run() {
    for (const auto& action : std::exchange(actions_, {})) action();
  }

 private:
  std::vector<std::function<void()>> actions_;
};

}  // namespace tandem::transfer

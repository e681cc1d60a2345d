// A server that a comparison starts: its own process group, its output in a file, stopped by
// SIGTERM and, where that does not help, SIGKILL. Move-only; one thread. The destructor stops it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "common/status.h"

namespace tandem::bench {

class ServerProcess {
 public:
  // Runs `arguments[0]` with its output going to `log_file`. Dies with this process.
  static Result<ServerProcess> start(const std::vector<std::string>& arguments,
                                     const std::string& log_file);
  ServerProcess(ServerProcess&& other) noexcept;
  ServerProcess& operator=(ServerProcess&&) = delete;
  ~ServerProcess() { stop(); }

  // Waits for its end, at most `limit`. Ok while it runs; else how it ended, with the last lines of
  // its output.
  Status running(std::chrono::milliseconds limit = std::chrono::milliseconds(0));
  // Waits until the whole group is gone, at most some 20 s. Idempotent.
  void stop();

 private:
  ServerProcess(pid_t pid, std::string log_file) : pid_(pid), log_file_(std::move(log_file)) {}

  pid_t pid_ = -1;
  bool reaped_ = false;
  int exit_status_ = 0;  // As waitpid gave it, once reaped
  std::string log_file_;
};

}  // namespace tandem::bench

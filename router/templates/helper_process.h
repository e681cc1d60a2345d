// HelperProcess: one child that renders templates, and its socket. Internal to router/templates.
//
// Move-only; one thread at a time. Destroying it kills and reaps the child. Start it from a thread
// that lives as long as the helper shall: the kernel kills the child when the thread that forked it
// ends.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"
#include "router/templates/template_renderer.h"

namespace tandem::templates {

class HelperProcess {
 public:
  // Starts a child and waits until it says that it is ready.
  static Result<HelperProcess> start(const RendererOptions& options);
  HelperProcess(HelperProcess&& other) noexcept;
  HelperProcess& operator=(HelperProcess&& other) noexcept;
  ~HelperProcess() { kill(); }

  // Sends one frame and returns the answer's body. After a failure only kill() is left to do.
  Result<std::string> exchange(std::string_view body, TimePoint deadline);
  // SIGKILL, and waits for the end of the process. Idempotent.
  void kill();

 private:
  HelperProcess(pid_t pid, UniqueFd socket, size_t answer_bytes_max);
  Status send_all(std::string_view bytes, TimePoint deadline);
  Status receive_all(char* bytes, size_t count, TimePoint deadline);
  Result<std::string> receive_frame(TimePoint deadline);

  pid_t pid_ = -1;
  UniqueFd socket_;
  size_t answer_bytes_max_ = 0;
};

}  // namespace tandem::templates

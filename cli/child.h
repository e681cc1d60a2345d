// Child: one process that `tandem up` started, in a process group of its own, with its output on a
// pipe.
//
// It dies with this process, even when this one is killed. One thread: the one that started it,
// which must live as long as the child should (the kernel ties the child's life to the starting
// thread).
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/unique_fd.h"

namespace tandem::cli {

class Child {
 public:
  // Starts `program` (a path). Its standard output and error arrive at output_fd().
  static Result<Child> start(const std::string& program, const std::vector<std::string>& args);

  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  // Kills what is left of the group.
  ~Child();

  pid_t pid() const { return pid_; }
  int output_fd() const { return output_.get(); }
  // Reads what is there, and gives whole lines to `line` (very long ones in pieces). False at the
  // end of output.
  bool read_output(const std::function<void(std::string_view)>& line);
  // To the child and everything that it started.
  void signal(int number) const;
  // True once it has ended; `wait_status` as from waitpid(2). Whatever it left running is killed.
  bool reap(int& wait_status);

 private:
  Child(pid_t pid, UniqueFd output) : pid_(pid), output_(std::move(output)) {}

  pid_t pid_ = -1;
  UniqueFd output_;
  std::string partial_line_;
};

// "status 1", "signal 9 (Killed)".
std::string describe_exit(int wait_status);

}  // namespace tandem::cli

// A process is known dead exactly when it cannot run any more: stopped and running ones are not, a
// later one with its number is.
#include "transfer/stream/process_identity.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tandem::transfer {

TEST_CASE("a process is known dead once it cannot run another instruction") {
  CHECK(same_host(ProcessIdentity::self()));
  CHECK(!known_dead(ProcessIdentity::self()));

  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const ProcessIdentity me = ProcessIdentity::self();
    if (::write(ready[1], &me.started, sizeof me.started) < 0) ::_exit(1);
    while (true) ::pause();
  }
  ProcessIdentity process = ProcessIdentity::self();
  process.pid = child;
  REQUIRE(::read(ready[0], &process.started, sizeof process.started) == sizeof process.started);
  CHECK(!known_dead(process));

  int status = 0;
  ::kill(child, SIGSTOP);
  ::waitpid(child, &status, WUNTRACED);
  CHECK(!known_dead(process));

  ProcessIdentity other = process;
  other.started += 1;
  CHECK(known_dead(other));
  other = process;
  other.host = "elsewhere";
  CHECK(!known_dead(other));

  ::kill(child, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, id_t(child), &info, WEXITED | WNOWAIT);  // A zombie now
  CHECK(known_dead(process));
  ::waitpid(child, &status, 0);
  CHECK(known_dead(process));
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace tandem::transfer

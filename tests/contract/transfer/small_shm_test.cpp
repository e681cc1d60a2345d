// A /dev/shm that is too small is noticed before the first touch: never a bus error, and transfers
// go on by another way. Each case runs in a process with a /dev/shm of its own; skipped where that
// is not allowed.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "tests/contract/transfer/stream_fixture.h"

namespace tandem::transfer {
namespace {

constexpr int kRight = 0;
constexpr int kSkipped = 77;

// Runs `check` in a child whose /dev/shm has `size`; its result, or 128 and the signal that ended
// it.
int with_small_shm(const char* size, const std::function<bool()>& check) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::string options = std::string("size=") + size;
    const bool allowed = ::unshare(CLONE_NEWNS) == 0 &&
                         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         ::mount("tmpfs", "/dev/shm", "tmpfs", 0, options.c_str()) == 0;
    ::_exit(!allowed ? kSkipped : check() ? kRight : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  if (WEXITSTATUS(status) == kSkipped) MESSAGE("skipped: no mount namespace of our own here");
  return WEXITSTATUS(status) == kSkipped ? kRight : WEXITSTATUS(status);
}

KvLayout layout_of_one_layer() {
  KvLayout layout;
  layout.element_type = "f16";
  layout.layers = {{1024, 1024, 0}};
  return layout;
}

// Landing memory from whatever make_transports() offers; touched all over.
bool receiver_works() {
  Config config;
  const auto owned = make_transports(config);
  std::vector<Transport*> transports;
  for (const auto& transport : owned) transports.push_back(transport.get());
  boost::asio::io_context io;
  const auto receiver = make_receiver(io, config, layout_of_one_layer(), transports);
  return receiver.ok();
}

}  // namespace

TEST_CASE("without room for queues UCX leaves posix out and landing memory is found elsewhere") {
  CHECK(with_small_shm("64k", receiver_works) == kRight);
}

TEST_CASE("lanes that need /dev/shm are refused where it is too small, and tcp takes over") {
  CHECK(with_small_shm("64k", [] {
          ::setenv("UCX_TLS", "posix,tcp", 1);
          const auto transports = make_transports(Config{});
          return transports.size() == 1 && transports[0]->name() == "tcp" && receiver_works();
        }) == kRight);
}

TEST_CASE("landing memory that does not fit /dev/shm is refused and comes from the heap") {
  CHECK(with_small_shm("40m", [] {
          ::setenv("UCX_TLS", "posix,tcp", 1);
          const auto ucx = make_transport("ucx", Config{});
          if (!ucx.ok())
            return make_transport("ucx", Config{}).status().code() == ErrorCode::kUnavailable;
          const auto segment = (*ucx)->allocate(64 << 20);
          return segment.status().code() == ErrorCode::kResourceExhausted && receiver_works();
        }) == kRight);
}

TEST_CASE("more landing memory than the machine has is refused before it is touched") {
  Config config;
  config.transfer.landing_bytes = config.transfer.segment_bytes = 1ll << 50;
  const auto tcp = make_transport("tcp", config);
  REQUIRE(tcp.ok());
  boost::asio::io_context io;
  const auto receiver = make_receiver(io, config, layout_of_one_layer(), {tcp->get()});
  CHECK(receiver.status().code() == ErrorCode::kResourceExhausted);
}

}  // namespace tandem::transfer

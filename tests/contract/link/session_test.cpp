// Sessions over real sockets: the handshake, order, back-pressure, closing, reconnecting, silence.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/contract/link/link_fixture.h"

using namespace tandem;
using namespace tandem::link;

TEST_CASE("both ends learn who the other is") {
  End server("d0");
  End client("p0");
  const std::string address = server.start_listening();
  client.start();
  dial(client.io, client.context, address, client.mailbox.handlers());
  REQUIRE(client.mailbox.wait_opens(1));
  REQUIRE(server.mailbox.wait_opens(1));
  CHECK(client.mailbox.session()->peer().name == "d0");
  CHECK(server.mailbox.session()->peer().name == "p0");
}

TEST_CASE("frames of any size arrive whole and in order, from several threads") {
  End server("d0");
  End client("p0");
  const std::string address = server.start_listening();
  client.start();
  dial(client.io, client.context, address, client.mailbox.handlers());
  REQUIRE(client.mailbox.wait_opens(1));
  const SessionPtr session = client.mailbox.session();
  constexpr int kFrames = 2000;
  const auto send_all = [&](FrameKind kind) {
    for (int i = 0; i < kFrames; ++i) {
      const std::string body = std::to_string(i) + std::string(i % 100 == 0 ? 60000 : i % 200, 'x');
      CHECK(session->send(kind, body).ok());
    }
  };
  std::thread other([&] { send_all(FrameKind::kLoad); });
  send_all(FrameKind::kTokens);
  other.join();
  REQUIRE(server.mailbox.wait_frames(2 * kFrames));
  int next_load = 0;
  int next_tokens = 0;
  for (const auto& frame : server.mailbox.frames()) {
    int& next = frame.kind == FrameKind::kLoad ? next_load : next_tokens;
    CHECK(frame.body.starts_with(std::to_string(next) + (next % 200 ? "x" : "")));
    ++next;
  }
  CHECK(next_load == kFrames);
  CHECK(next_tokens == kFrames);
  CHECK(session->queued_bytes() == 0);
}

TEST_CASE("a peer with another secret is refused, and is told") {
  End server("d0");
  End client("p0", "not that secret at all");
  const std::string address = server.start_listening();
  client.start();
  dial(client.io, client.context, address, client.mailbox.handlers());
  REQUIRE(client.mailbox.wait_closes(1));
  CHECK(client.mailbox.closes()[0].code() == ErrorCode::kUnauthenticated);
  CHECK(server.mailbox.opens() == 0);
}

TEST_CASE("the check's refusal reaches the other end word for word") {
  End server("d0");
  End client("unwelcome");
  const std::string address = server.start_listening();
  client.start();
  dial(client.io, client.context, address, client.mailbox.handlers());
  REQUIRE(client.mailbox.wait_closes(1));
  const Status reason = client.mailbox.closes()[0];
  CHECK(reason.code() == ErrorCode::kFailedPrecondition);
  CHECK(reason.message().find("another model") != std::string::npos);
  CHECK(client.mailbox.opens() == 0);
  CHECK(server.mailbox.opens() == 0);
}

TEST_CASE("closing tells the peer why, after the frames sent before") {
  End server("d0");
  End client("p0");
  const std::string address = server.start_listening();
  client.start();
  dial(client.io, client.context, address, client.mailbox.handlers());
  REQUIRE(client.mailbox.wait_opens(1));
  REQUIRE(server.mailbox.wait_opens(1));
  for (int i = 0; i < 50; ++i) CHECK(server.mailbox.session()->send(FrameKind::kLoad, "x").ok());
  server.mailbox.session()->close({ErrorCode::kResourceExhausted, "because"});
  REQUIRE(client.mailbox.wait_closes(1));
  CHECK(client.mailbox.frames().size() == 50);
  CHECK(client.mailbox.closes()[0].code() == ErrorCode::kResourceExhausted);
  CHECK(client.mailbox.closes()[0].message().find("because") != std::string::npos);
  REQUIRE(server.mailbox.wait_closes(1));
  CHECK(server.mailbox.session()->send(FrameKind::kLoad, "x").code() == ErrorCode::kUnavailable);
}

TEST_CASE("an idle link stays open by its heartbeats") {
  End server("d0");
  End client("p0");
  const std::string address = server.start_listening();
  client.start();
  dial(client.io, client.context, address, client.mailbox.handlers());
  REQUIRE(server.mailbox.wait_opens(1));
  // A second link that never pings shows when the allowed silence has passed.
  End other("p1");
  other.config.silence_max = Milliseconds(6000);
  other.config.heartbeat = Milliseconds(60000);
  other.start();
  dial(other.io, other.context, address, other.mailbox.handlers());
  // The silent one: its heartbeat is too slow for the server.
  REQUIRE(server.mailbox.wait_closes(1));
  CHECK(server.mailbox.closes()[0].code() == ErrorCode::kDeadlineExceeded);
  CHECK(client.mailbox.closes().empty());
  CHECK(client.mailbox.session()->send(FrameKind::kLoad, "x").ok());
  CHECK(server.mailbox.wait_frames(1));
}

TEST_CASE("a dialler comes back when its peer does") {
  auto server = std::make_unique<End>("d0");
  const std::string address = server->start_listening();
  End client("p0");
  client.dialer = keep_dialled(client.io, client.context, address, client.mailbox.handlers());
  client.start();
  REQUIRE(client.mailbox.wait_opens(1));
  server.reset();
  REQUIRE(client.mailbox.wait_closes(2));  // The session, and at least one dial that found nobody.
  server = std::make_unique<End>("d0");
  server->config.listen = address;
  server->start_listening();
  REQUIRE(client.mailbox.wait_opens(2));
  CHECK(client.mailbox.session(1)->send(FrameKind::kLoad, "again").ok());
  CHECK(server->mailbox.wait_frames(1));
}

TEST_CASE("a port in use is a clear error") {
  End server("d0");
  const std::string address = server.start_listening();
  End second("d1");
  second.config.listen = address;
  const auto made = listen(second.io, second.context, second.mailbox.handlers());
  REQUIRE_FALSE(made.ok());
  CHECK(made.status().message().find(address) != std::string::npos);
  CHECK(made.status().message().find("in use") != std::string::npos);
}

TEST_CASE("nobody there, or nobody who answers, ends within the deadline") {
  End client("p0");
  client.config.connect_deadline = Milliseconds(200);
  client.start();
  dial(client.io, client.context, "127.0.0.1:1", client.mailbox.handlers());
  REQUIRE(client.mailbox.wait_closes(1));
  CHECK(client.mailbox.closes()[0].code() == ErrorCode::kUnavailable);
  dial(client.io, client.context, "no port", client.mailbox.handlers());
  REQUIRE(client.mailbox.wait_closes(2));
  // A listener whose thread does not run: the kernel accepts, nobody says hello.
  End mute("d0");
  auto made = listen(mute.io, mute.context, mute.mailbox.handlers());
  REQUIRE(made.ok());
  dial(client.io, client.context, (*made)->address(), client.mailbox.handlers());
  REQUIRE(client.mailbox.wait_closes(3));
  CHECK(client.mailbox.closes()[2].code() == ErrorCode::kDeadlineExceeded);
}

TEST_CASE("more connections than allowed are refused with the reason") {
  End server("d0");
  server.config.connections_max = 1;
  const std::string address = server.start_listening();
  End client("p0");
  client.start();
  dial(client.io, client.context, address, client.mailbox.handlers());
  REQUIRE(client.mailbox.wait_opens(1));
  dial(client.io, client.context, address, client.mailbox.handlers());
  REQUIRE(client.mailbox.wait_closes(1));
  CHECK(client.mailbox.closes()[0].code() == ErrorCode::kResourceExhausted);
  client.mailbox.session()->close({ErrorCode::kCancelled, "done"});
  REQUIRE(client.mailbox.wait_closes(2));
  REQUIRE(server.mailbox.wait_closes(1));
  // The room is free again.
  client.dialer = keep_dialled(client.io, client.context, address, client.mailbox.handlers());
  CHECK(client.mailbox.wait_opens(2));
}

TEST_CASE("a stopped process counts as dead after the allowed silence") {
  int to_parent[2];
  REQUIRE(pipe(to_parent) == 0);
  const pid_t child = fork();
  if (child == 0) {
    End server("d0");
    const std::string address = server.start_listening();
    if (write(to_parent[1], address.data(), address.size()) < 0) _exit(1);
    for (;;) pause();
  }
  REQUIRE(child > 0);
  char address[64] = {};
  REQUIRE(read(to_parent[0], address, sizeof address - 1) > 0);
  End client("p0");
  client.start();
  dial(client.io, client.context, address, client.mailbox.handlers());
  REQUIRE(client.mailbox.wait_opens(1));
  const auto stopped_at = SystemClock::get().now();
  kill(child, SIGSTOP);
  REQUIRE(client.mailbox.wait_closes(1));
  const double waited = to_ms(SystemClock::get().now() - stopped_at);
  CHECK(client.mailbox.closes()[0].code() == ErrorCode::kDeadlineExceeded);
  CHECK(waited < 2500);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  ::close(to_parent[0]);
  ::close(to_parent[1]);
}

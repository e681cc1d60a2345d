// Peers that lie, stall or talk nonsense, as raw sockets.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/random.h"
#include "tests/contract/link/link_fixture.h"

#include "link/auth.h"
#include "link/pack.h"

#include <nlohmann/json.hpp>

using namespace tandem;
using namespace tandem::link;

namespace {

constexpr char kSecret[] = "a secret of some length";

// A blocking socket that speaks the handshake as far as it is told to.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    timeval limit{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(parse_host_port(address)->port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    TANDEM_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0, "connect");
  }
  ~RawPeer() { ::close(fd_); }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void send_frame(FrameKind kind, std::string_view body) { send(encode_frame(kind, body)); }
  // The next frame; kind 0 at the end of the stream.
  Mailbox::Frame receive() {
    std::string header = receive_bytes(kFrameHeaderBytes);
    if (header.empty()) return {FrameKind{}, ""};
    const auto decoded = decode_header(header, 1 << 20);
    TANDEM_CHECK(decoded.ok(), "header");
    return {decoded->kind, receive_bytes(decoded->body_bytes)};
  }
  bool closed_by_peer() {
    for (;;) {
      char byte;
      const ssize_t got = recv(fd_, &byte, 1, 0);
      if (got == 1) continue;
      return got == 0 || errno == ECONNRESET;
    }
  }
  void handshake() {
    Hello hello;
    hello.kind = "router";
    hello.name = "raw";
    hello.nonce = make_nonce();
    const std::string own = hello.encode();
    send_frame(FrameKind::kHello, own);
    const auto challenge = receive();
    TANDEM_CHECK(challenge.kind == FrameKind::kChallenge, "challenge");
    const auto object = nlohmann::json::from_msgpack(challenge.body);
    const auto& theirs = object["hello"].get_binary();
    const std::string peer(theirs.begin(), theirs.end());
    send_frame(FrameKind::kProof, make_proof(kSecret, Side::kDialer, own, peer));
    TANDEM_CHECK(receive().kind == FrameKind::kWelcome, "welcome");
  }

 private:
  std::string receive_bytes(size_t count) {
    std::string bytes(count, '\0');
    if (count == 0) return bytes;
    const ssize_t got = recv(fd_, bytes.data(), count, MSG_WAITALL);
    if (got != static_cast<ssize_t>(count)) bytes.clear();
    return bytes;
  }
  int fd_;
};

TEST_CASE("silent connections do not keep out a peer that introduces itself") {
  End server("d0");
  server.config.connections_max = 2;
  server.config.connect_deadline = Milliseconds(60000);
  const std::string address = server.start_listening();
  const RawPeer silent[2] = {RawPeer(address), RawPeer(address)};
  End client("p0");
  client.start();
  client.dialer = keep_dialled(client.io, client.context, address, client.mailbox.handlers());
  CHECK(client.mailbox.wait_opens(1));
}

}  // namespace

TEST_CASE("garbage before the handshake closes the connection and nothing else") {
  const uint64_t seed = seed_from_environment();
  MESSAGE("TANDEM_SEED=" << seed);
  End server("d0", kSecret);
  const std::string address = server.start_listening();
  for (uint64_t round = 0; round < 50; ++round) {
    std::string noise(200, '\0');
    for (size_t i = 0; i < noise.size(); ++i) {
      noise[i] = static_cast<char>(counter_random(seed, round * 1000 + i));
    }
    RawPeer peer(address);
    peer.send("GET / HTTP/1.1\r\n\r\n");
    peer.send(noise);
    CHECK(peer.closed_by_peer());
  }
  CHECK(server.mailbox.opens() == 0);
  RawPeer good(address);
  good.handshake();
  CHECK(server.mailbox.wait_opens(1));
}

TEST_CASE("a frame that skips the handshake, or repeats it, is not looked at") {
  End server("d0", kSecret);
  const std::string address = server.start_listening();
  {
    RawPeer peer(address);
    peer.send_frame(FrameKind::kPrefill, "x");
    CHECK(peer.receive().kind == FrameKind::kRefuse);
    CHECK(peer.closed_by_peer());
  }
  {
    RawPeer peer(address);
    peer.send_frame(FrameKind::kProof, std::string(kProofBytes, 'x'));
    CHECK(peer.receive().kind == FrameKind::kRefuse);
  }
  {
    RawPeer peer(address);
    peer.handshake();
    REQUIRE(server.mailbox.wait_opens(1));
    peer.send_frame(FrameKind::kHello, "x");
    REQUIRE(server.mailbox.wait_closes(1));
  }
  CHECK(server.mailbox.frames().empty());
}

TEST_CASE("a wrong or replayed proof is refused") {
  End server("d0", kSecret);
  const std::string address = server.start_listening();
  RawPeer peer(address);
  Hello hello;
  hello.kind = "router";
  hello.nonce = make_nonce();
  peer.send_frame(FrameKind::kHello, hello.encode());
  const auto challenge = peer.receive();
  const auto object = nlohmann::json::from_msgpack(challenge.body);
  const auto& proof = object["proof"].get_binary();
  // The listener's own proof, sent back.
  peer.send_frame(FrameKind::kProof, std::string(proof.begin(), proof.end()));
  const auto answer = peer.receive();
  CHECK(answer.kind == FrameKind::kRefuse);
  CHECK(LegFailed::decode(answer.body)->code == ErrorCode::kUnauthenticated);
  CHECK(server.mailbox.opens() == 0);
}

TEST_CASE("lengths that lie close the link with a reason") {
  End server("d0", kSecret);
  server.config.frame_bytes_max = 1 << 20;
  const std::string address = server.start_listening();
  const std::string headers[] = {std::string("\xff\xff\xff\xff\x20", 5),
                                 std::string("\0\0\0\0\x20", 5), std::string("\1\0\0\0\x63", 5)};
  size_t closes = 0;
  for (const std::string& header : headers) {
    RawPeer peer(address);
    peer.handshake();
    peer.send(header);
    REQUIRE(server.mailbox.wait_closes(++closes));
    CHECK(server.mailbox.closes().back().code() == ErrorCode::kInvalidArgument);
    auto last = peer.receive();
    while (last.kind == FrameKind::kPing) last = peer.receive();
    CHECK(last.kind == FrameKind::kGoodbye);
  }
  // A header in the handshake may not claim more than a handshake needs.
  RawPeer peer(address);
  peer.send(std::string("\x00\x00\x08\x00\x01", 5));
  CHECK(peer.closed_by_peer());
}

TEST_CASE("a frame that never ends is silence") {
  End server("d0", kSecret);
  const std::string address = server.start_listening();
  RawPeer peer(address);
  peer.handshake();
  REQUIRE(server.mailbox.wait_opens(1));
  peer.send(std::string("\x00\x10\x00\x00\x20", 5) + "half");
  REQUIRE(server.mailbox.wait_closes(1));
  CHECK(server.mailbox.closes()[0].code() == ErrorCode::kDeadlineExceeded);
  CHECK(server.mailbox.frames().empty());
}

TEST_CASE("a peer that says nothing in the handshake is cut off at the deadline") {
  End server("d0", kSecret);
  server.config.connect_deadline = Milliseconds(150);
  const std::string address = server.start_listening();
  RawPeer peer(address);
  CHECK(peer.closed_by_peer());
}

TEST_CASE("a peer that does not read is cut off at the queue's limit, others are not") {
  End server("d0", kSecret);
  server.config.send_queue_bytes = 1 << 20;
  const std::string address = server.start_listening();
  RawPeer slow(address);
  slow.handshake();
  REQUIRE(server.mailbox.wait_opens(1));
  RawPeer good(address);
  good.handshake();
  REQUIRE(server.mailbox.wait_opens(2));
  const SessionPtr to_slow = server.mailbox.session(0);
  const std::string body(100000, 'x');
  Status status;
  int64_t most = 0;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = to_slow->send(FrameKind::kTokens, body);
    most = std::max(most, to_slow->queued_bytes());
  }
  CHECK(status.code() == ErrorCode::kResourceExhausted);
  CHECK(most <= 1 << 20);
  REQUIRE(server.mailbox.wait_closes(1));
  CHECK(server.mailbox.closes()[0].code() == ErrorCode::kResourceExhausted);
  CHECK(to_slow->send(FrameKind::kTokens, body).code() == ErrorCode::kUnavailable);
  CHECK(server.mailbox.session(1)->send(FrameKind::kLoad, "x").ok());
  auto frame = good.receive();
  while (frame.kind == FrameKind::kPing) frame = good.receive();
  CHECK(frame.kind == FrameKind::kLoad);
}

#include <fstream>
#include <nlohmann/json.hpp>

#include "link/pack.h"
#include "link/session_impl.h"

// The handshake, in which nothing but these frames is looked at:
//
//   dialler                              listener
//   kHello: hello, nonce            ->
//                                   <-   kChallenge: hello, nonce, proof of the listener
//   kProof: proof of the dialler    ->   (or kRefuse)
//                                   <-   kWelcome (or kRefuse)
namespace tandem::link {

void SessionImpl::on_handshake_frame(FrameKind kind, std::string_view body) {
  const bool dialer = side_ == Side::kDialer;
  if (kind == FrameKind::kRefuse) {
    const auto said = LegFailed::decode(body);
    return fail(said ? Status(said->code, "refused: " + said->message)
                     : Status(ErrorCode::kUnavailable, "refused"),
                Tell::kNothing);
  }
  if (!dialer && kind == FrameKind::kHello && peer_hello_.empty()) return on_hello(body);
  if (!dialer && kind == FrameKind::kProof && !peer_hello_.empty()) return on_proof(body);
  if (dialer && kind == FrameKind::kChallenge && peer_hello_.empty()) return on_challenge(body);
  if (dialer && kind == FrameKind::kWelcome && !peer_hello_.empty()) return open();
  fail({ErrorCode::kInvalidArgument, "frame out of turn in the handshake"}, Tell::kRefuse);
}

void SessionImpl::on_hello(std::string_view body) {
  peer_hello_ = body;
  const std::string proof = make_proof(context_.secret, Side::kListener, peer_hello_, own_hello_);
  push(FrameKind::kChallenge,
       pack({{"hello", pack_bytes(own_hello_)}, {"proof", pack_bytes(proof)}}));
}

void SessionImpl::on_challenge(std::string_view body) {
  constexpr size_t kHelloBytesMax = 16384;
  std::string hello;
  std::string proof;
  Fields fields(body);
  fields.bytes("hello", hello, 1, kHelloBytesMax);
  fields.bytes("proof", proof, kProofBytes, kProofBytes);
  if (!fields.status().ok()) {
    return fail(fields.status().with_context("challenge"), Tell::kRefuse);
  }
  peer_hello_ = std::move(hello);
  if (!proofs_equal(proof, make_proof(context_.secret, Side::kListener, own_hello_, peer_hello_))) {
    return fail({ErrorCode::kUnauthenticated, "the peer does not know our secret"}, Tell::kRefuse);
  }
  if (Status status = check_peer(peer_hello_); !status.ok()) return fail(status, Tell::kRefuse);
  push(FrameKind::kProof, make_proof(context_.secret, Side::kDialer, own_hello_, peer_hello_));
}

void SessionImpl::on_proof(std::string_view body) {
  if (!proofs_equal(body, make_proof(context_.secret, Side::kDialer, peer_hello_, own_hello_))) {
    return fail({ErrorCode::kUnauthenticated, "the peer does not know our secret"}, Tell::kRefuse);
  }
  if (Status status = check_peer(peer_hello_); !status.ok()) return fail(status, Tell::kRefuse);
  push(FrameKind::kWelcome, {});
  open();
}

Status SessionImpl::check_peer(std::string_view hello_body) {
  auto hello = Hello::decode(hello_body);
  if (!hello) return hello.status();
  if (hello->protocol != kProtocolVersion) {
    return {ErrorCode::kFailedPrecondition,
            "peer speaks protocol " + std::to_string(hello->protocol) + ", this build speaks " +
                std::to_string(kProtocolVersion)};
  }
  peer_ = std::move(*hello);
  return handlers_.check ? handlers_.check(peer_) : Status();
}

void SessionImpl::open() {
  state_ = State::kOpen;
  peer_hello_.shrink_to_fit();
  last_heard_ = SystemClock::get().now();
  next_ping_ = last_heard_ + context_.config.heartbeat;
  {
    const std::lock_guard lock(mutex_);
    sendable_ = !closing_.load();
  }
  arm_heartbeat();
  if (handlers_.on_open) handlers_.on_open(shared_from_this());
}

Result<std::string> load_secret(const LinkConfig& config) {
  constexpr size_t kSecretBytesMin = 16;
  constexpr size_t kSecretBytesMax = 4096;
  if (config.secret_file.empty()) {
    const auto listen = parse_host_port(config.listen);
    if (!listen) return listen.status();
    const std::string& host = listen->host;
    if (host == "localhost" || host == "::1" || host.starts_with("127.")) return std::string();
    return Status(ErrorCode::kInvalidArgument, "link.secret_file is required when link.listen (" +
                                                   config.listen +
                                                   ") is reachable from other machines");
  }
  std::ifstream file(config.secret_file, std::ios::binary);
  if (!file) {
    return Status(ErrorCode::kNotFound,
                  "link.secret_file: cannot read '" + config.secret_file + "'");
  }
  std::string secret(kSecretBytesMax + 1, '\0');
  file.read(secret.data(), static_cast<std::streamsize>(secret.size()));
  secret.resize(static_cast<size_t>(file.gcount()));
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() < kSecretBytesMin || secret.size() > kSecretBytesMax) {
    return Status(ErrorCode::kInvalidArgument,
                  "link.secret_file: '" + config.secret_file + "' must hold 16 to 4096 bytes");
  }
  return secret;
}

}  // namespace tandem::link

#include "transfer/tcp/tcp_wire.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>

namespace tandem::transfer {
namespace {

template <class T>
std::string_view raw(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Within a host small buffers are faster, since they stay in the cache. Between hosts the kernel's
// own tuning knows the path better than we do.
constexpr int kLocalSendBytes = 256 << 10;
constexpr int kLocalReceiveBytes = 512 << 10;

}  // namespace

std::string TcpAddress::encode() const { return std::string(raw(port)).append(key).append(host); }

Result<TcpAddress> TcpAddress::decode(std::string_view bytes) {
  TcpAddress address;
  if (bytes.size() < sizeof address.port + kTcpKeyBytes || bytes.size() > 512) {
    return Status(ErrorCode::kInvalidArgument, "not a TCP transport's address");
  }
  std::memcpy(&address.port, bytes.data(), sizeof address.port);
  address.key = bytes.substr(sizeof address.port, kTcpKeyBytes);
  address.host = bytes.substr(sizeof address.port + kTcpKeyBytes);
  return address;
}

std::string TcpDescriptor::encode() const { return std::string(raw(segment)).append(raw(size)); }

Result<TcpDescriptor> TcpDescriptor::decode(std::string_view bytes) {
  TcpDescriptor descriptor;
  if (bytes.size() != sizeof descriptor) {
    return Status(ErrorCode::kInvalidArgument, "not a TCP segment");
  }
  std::memcpy(&descriptor, bytes.data(), sizeof descriptor);
  return descriptor;
}

namespace {

bool within_host(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_bytes = sizeof own;
  socklen_t peer_bytes = sizeof peer;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0 ||
      own.ss_family != peer.ss_family) {
    return false;
  }
  if (own.ss_family == AF_INET) {
    return reinterpret_cast<sockaddr_in&>(own).sin_addr.s_addr ==
           reinterpret_cast<sockaddr_in&>(peer).sin_addr.s_addr;
  }
  return std::memcmp(&reinterpret_cast<sockaddr_in6&>(own).sin6_addr,
                     &reinterpret_cast<sockaddr_in6&>(peer).sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

void tune_socket(int fd) {
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (!within_host(fd)) return;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kLocalSendBytes, sizeof kLocalSendBytes);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kLocalReceiveBytes, sizeof kLocalReceiveBytes);
}

}  // namespace tandem::transfer

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

void tune_socket(int fd) {
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kTcpBufferBytes, sizeof kTcpBufferBytes);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kTcpBufferBytes, sizeof kTcpBufferBytes);
}

}  // namespace tandem::transfer

#include "cli/ports.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace tandem::cli {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> resolve(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) return Status(ErrorCode::kInvalidArgument, gai_strerror(error));
  return AddressList(found, &freeaddrinfo);
}

std::string reason_of(int error) { return std::generic_category().message(error); }

// A socket bound to `address`. `as_server`: a port in TIME_WAIT may be taken, one with a listener
// may not. Without it, no port that anybody holds.
Result<UniqueFd> bind_to(const HostPort& address, bool as_server) {
  auto list = resolve(address, AI_PASSIVE);
  if (!list) return list.status();
  const addrinfo& info = **list;
  UniqueFd fd(::socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = as_server ? 1 : 0;
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd || ::bind(fd.get(), info.ai_addr, info.ai_addrlen) != 0) {
    return Status(ErrorCode::kUnavailable, reason_of(errno));
  }
  return fd;
}

}  // namespace

Result<uint16_t> PortPicker::pick(const std::string& host) {
  auto fd = bind_to({host, 0}, false);
  if (!fd) return fd.status().with_context("no free port on " + host);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(fd->get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return Status(ErrorCode::kInternal, reason_of(errno));
  }
  // The port sits at the same place for both families.
  const uint16_t port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  held_.push_back(std::move(*fd));
  return port;
}

Status try_bind(const HostPort& address) {
  auto fd = bind_to(address, true);
  if (!fd) return fd.status();
  if (::listen(fd->get(), 1) != 0) return {ErrorCode::kUnavailable, reason_of(errno)};
  return {};
}

bool accepts_connections(const HostPort& address, int timeout_ms) {
  auto list = resolve(address, 0);
  if (!list) return false;
  const addrinfo& info = **list;
  const UniqueFd fd(::socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return false;
  if (::connect(fd.get(), info.ai_addr, info.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd waiting{fd.get(), POLLOUT, 0};
  if (::poll(&waiting, 1, timeout_ms) != 1) return false;
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

}  // namespace tandem::cli

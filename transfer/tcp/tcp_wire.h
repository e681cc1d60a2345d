// Layouts and limits of the TCP transport. Private to tcp/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace tandem::transfer {

inline constexpr std::string_view kTcpMagic = "TANDEMT1";
inline constexpr size_t kTcpKeyBytes = 16;
inline constexpr size_t kTcpPreambleBytes = kTcpMagic.size() + kTcpKeyBytes;
inline constexpr size_t kTcpMessageBytesMax = 64 << 10;

enum class TcpKind : uint32_t { kPut = 1, kMessage = 2 };

struct TcpHeader {
  TcpKind kind{};
  uint32_t zero = 0;
  uint64_t target = 0;  // Segment of a put, sequence of a message
  uint64_t offset = 0;
  uint64_t length = 0;
};
static_assert(sizeof(TcpHeader) == 32);

// Where and how to reach a transport: {u16 port, key, host}. An empty host: as the link reaches it.
struct TcpAddress {
  std::string host;
  uint16_t port = 0;
  std::string key;

  std::string encode() const;
  static Result<TcpAddress> decode(std::string_view bytes);
};

// {u64 segment, u64 size}
struct TcpDescriptor {
  uint64_t segment = 0;
  uint64_t size = 0;

  std::string encode() const;
  static Result<TcpDescriptor> decode(std::string_view bytes);
};

// No delay; buffers to suit the way. Requires: connected.
void tune_socket(int fd);

}  // namespace tandem::transfer

// The frame of every link: `u32 length (little endian) | u8 kind | body`, length counting kind and
// body. Bodies are MessagePack maps, except kTokens (compact binary, messages.h).
// docs/wire_format.md is the grammar. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace tandem::link {

inline constexpr int kProtocolVersion = 2;

enum class FrameKind : uint8_t {
  // Handshake and liveness: session.h handles these itself.
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kWelcome = 4,
  kRefuse = 5,
  kPing = 6,
  kGoodbye = 7,
  // Router to worker.
  kPrefill = 16,
  kDecode = 17,
  kCancel = 18,
  kControl = 19,  // drain, resume
  // Worker to router.
  kLoad = 32,
  kPrefillDone = 33,
  kTokens = 34,
  kLegFailed = 35,
  kLegEvent = 36,
  // Prefill worker to decode worker, and back: transfer/.
  kOpen = 48,
  kGranted = 49,
  kDenied = 50,
  kLanded = 51,
  kCredit = 52,
  kSeal = 53,
  kDone = 54,
  kAbort = 55,
  kQuiesced = 56,
};

inline constexpr size_t kFrameHeaderBytes = 5;

struct FrameHeader {
  FrameKind kind{};
  uint32_t body_bytes = 0;
};

// Requires: body.size() + 1 fits 32 bits.
std::string encode_frame(FrameKind kind, std::string_view body);
// kInvalidArgument when the length is 0 or above `frame_bytes_max`, or the kind is unknown.
// Requires: header.size() == kFrameHeaderBytes.
Result<FrameHeader> decode_header(std::string_view header, int64_t frame_bytes_max);

}  // namespace tandem::link

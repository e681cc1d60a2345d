#include "link/frame.h"

#include <limits>

namespace tandem::link {
namespace {

bool is_known(uint8_t kind) {
  const auto in = [kind](FrameKind first, FrameKind last) {
    return kind >= static_cast<uint8_t>(first) && kind <= static_cast<uint8_t>(last);
  };
  return in(FrameKind::kHello, FrameKind::kGoodbye) ||
         in(FrameKind::kPrefill, FrameKind::kControl) ||
         in(FrameKind::kLoad, FrameKind::kLegEvent) || in(FrameKind::kOpen, FrameKind::kQuiesced);
}

}  // namespace

std::string encode_frame(FrameKind kind, std::string_view body) {
  TANDEM_CHECK(body.size() < std::numeric_limits<uint32_t>::max(), "frame too long");
  const uint32_t length = static_cast<uint32_t>(body.size()) + 1;
  std::string frame;
  frame.reserve(kFrameHeaderBytes + body.size());
  for (int shift = 0; shift < 32; shift += 8) {
    frame.push_back(static_cast<char>((length >> shift) & 0xff));
  }
  frame.push_back(static_cast<char>(kind));
  frame.append(body);
  return frame;
}

Result<FrameHeader> decode_header(std::string_view header, int64_t frame_bytes_max) {
  TANDEM_CHECK(header.size() == kFrameHeaderBytes, "a header has 5 bytes");
  uint32_t length = 0;
  for (size_t i = 0; i < 4; ++i) {
    length |= static_cast<uint32_t>(static_cast<uint8_t>(header[i])) << (8 * i);
  }
  if (length == 0) return Status(ErrorCode::kInvalidArgument, "frame of length 0");
  if (static_cast<int64_t>(length) > frame_bytes_max) {
    return Status(ErrorCode::kInvalidArgument, "frame of " + std::to_string(length) +
                                                   " bytes, at most " +
                                                   std::to_string(frame_bytes_max) + " allowed");
  }
  const auto kind = static_cast<uint8_t>(header[4]);
  if (!is_known(kind)) {
    return Status(ErrorCode::kInvalidArgument, "unknown frame kind " + std::to_string(kind));
  }
  return FrameHeader{static_cast<FrameKind>(kind), length - 1};
}

}  // namespace tandem::link

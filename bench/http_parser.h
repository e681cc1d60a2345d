// An HTTP/1.1 response, byte by byte: header, then a body that is chunked, counted or ends with the
// connection. Interim (1xx) answers are skipped. One owner, one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace tandem::bench {

class HttpResponseParser {
 public:
  using OnBody = std::function<void(std::string_view piece)>;

  // Fails on bytes that are no HTTP response. Bytes after the response's end are ignored.
  Status feed(std::string_view bytes, const OnBody& on_body);
  // The connection has ended. Fails unless the response is complete by then.
  Status finish();

  bool has_header() const { return state_ > State::kHeader; }
  bool done() const { return state_ == State::kDone; }
  int status_code() const { return status_code_; }

  static constexpr size_t kHeaderBytesMax = 256u << 10;

 private:
  enum class State {
    kStatusLine,
    kHeader,
    kChunkSize,
    kChunkData,
    kChunkEnd,
    kTrailer,
    kCounted,
    kUntilClose,
    kDone
  };

  Status end_line();
  Status parse_status_line();
  Status parse_field();
  Status parse_chunk_size();
  void begin_body();
  bool in_body() const {
    return state_ == State::kChunkData || state_ == State::kCounted || state_ == State::kUntilClose;
  }
  std::string_view take_body(std::string_view bytes);

  State state_ = State::kStatusLine;
  std::string line_;
  size_t header_bytes_ = 0;
  int status_code_ = 0;
  bool chunked_ = false;
  bool counted_ = false;
  uint64_t remaining_ = 0;  // Of the chunk, or of the counted body
};

}  // namespace tandem::bench

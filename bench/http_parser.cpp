#include "bench/http_parser.h"

#include <algorithm>
#include <charconv>

namespace tandem::bench {
namespace {

Status malformed(std::string_view what) {
  return {ErrorCode::kDataLoss, "malformed HTTP response: " + std::string(what)};
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

}  // namespace

Status HttpResponseParser::feed(std::string_view bytes, const OnBody& on_body) {
  while (!bytes.empty() && state_ != State::kDone) {
    if (in_body()) {
      const std::string_view piece = take_body(bytes);
      bytes.remove_prefix(piece.size());
      on_body(piece);
      continue;
    }
    const size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    if (header_bytes_ + line_.size() > kHeaderBytesMax) return malformed("endless header");
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    TANDEM_RETURN_IF_ERROR(end_line());
    line_.clear();
  }
  return {};
}

Status HttpResponseParser::finish() {
  if (state_ == State::kUntilClose) state_ = State::kDone;
  if (state_ == State::kDone) return {};
  return {ErrorCode::kUnavailable, status_code_ == 0 && line_.empty()
                                       ? "connection closed before any answer"
                                       : "connection closed in the middle of the answer"};
}

std::string_view HttpResponseParser::take_body(std::string_view bytes) {
  if (state_ == State::kUntilClose) return bytes;
  const std::string_view piece = bytes.substr(0, std::min<uint64_t>(bytes.size(), remaining_));
  remaining_ -= piece.size();
  if (remaining_ == 0) state_ = state_ == State::kChunkData ? State::kChunkEnd : State::kDone;
  return piece;
}

Status HttpResponseParser::end_line() {
  switch (state_) {
    case State::kStatusLine:
      return parse_status_line();
    case State::kHeader:
      header_bytes_ += line_.size();
      if (line_.empty()) {
        begin_body();
        return {};
      }
      return parse_field();
    case State::kChunkSize:
      return parse_chunk_size();
    case State::kChunkEnd:
      if (!line_.empty()) return malformed("no line end after a chunk");
      state_ = State::kChunkSize;
      return {};
    case State::kTrailer:
      header_bytes_ += line_.size();
      if (line_.empty()) state_ = State::kDone;
      return {};
    default:
      return malformed("unexpected line");
  }
}

Status HttpResponseParser::parse_status_line() {
  // HTTP/1.1 200 OK
  if (!line_.starts_with("HTTP/1.") || line_.size() < 12) return malformed("status line");
  const auto [end, error] = std::from_chars(line_.data() + 9, line_.data() + 12, status_code_);
  if (error != std::errc{} || end != line_.data() + 12 || status_code_ < 100)
    return malformed("status code");
  state_ = State::kHeader;
  chunked_ = counted_ = false;
  return {};
}

Status HttpResponseParser::parse_field() {
  const size_t colon = line_.find(':');
  if (colon == std::string::npos) return malformed("header field without a colon");
  const std::string_view name = std::string_view(line_).substr(0, colon);
  std::string_view value = std::string_view(line_).substr(colon + 1);
  while (value.starts_with(' ')) value.remove_prefix(1);
  while (value.ends_with(' ')) value.remove_suffix(1);
  if (equal_ignoring_case(name, "transfer-encoding") && equal_ignoring_case(value, "chunked")) {
    chunked_ = true;
  } else if (equal_ignoring_case(name, "content-length")) {
    const auto [end, error] =
        std::from_chars(value.data(), value.data() + value.size(), remaining_);
    if (error != std::errc{} || end != value.data() + value.size())
      return malformed("content-length");
    counted_ = true;
  }
  return {};
}

void HttpResponseParser::begin_body() {
  if (status_code_ < 200) {
    state_ = State::kStatusLine;
  } else if (status_code_ == 204 || status_code_ == 304) {
    state_ = State::kDone;
  } else if (chunked_) {
    state_ = State::kChunkSize;
  } else if (counted_) {
    state_ = remaining_ == 0 ? State::kDone : State::kCounted;
  } else {
    state_ = State::kUntilClose;
  }
}

Status HttpResponseParser::parse_chunk_size() {
  const auto [end, error] =
      std::from_chars(line_.data(), line_.data() + line_.size(), remaining_, 16);
  if (error != std::errc{} || (end != line_.data() + line_.size() && *end != ';' && *end != ' '))
    return malformed("chunk size");
  state_ = remaining_ == 0 ? State::kTrailer : State::kChunkData;
  return {};
}

}  // namespace tandem::bench

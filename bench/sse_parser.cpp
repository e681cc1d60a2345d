#include "bench/sse_parser.h"

namespace tandem::bench {

Status SseParser::feed(std::string_view bytes, const OnData& on_data) {
  while (!bytes.empty()) {
    if (after_cr_) {
      after_cr_ = false;
      if (bytes.front() == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    const size_t end = bytes.find_first_of("\r\n");
    line_.append(bytes.substr(0, end));
    if (line_.size() + data_.size() > kEventBytesMax)
      return {ErrorCode::kResourceExhausted, "a server-sent event is longer than 16 MiB"};
    if (end == std::string_view::npos) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line(on_data);
  }
  return {};
}

void SseParser::end_line(const OnData& on_data) {
  if (line_.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  if (line_ == "data" || line_.starts_with("data:")) {
    std::string_view value = std::string_view(line_).substr(std::min<size_t>(5, line_.size()));
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace tandem::bench

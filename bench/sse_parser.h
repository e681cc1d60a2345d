// Server-sent events, byte by byte: any split of the input gives the same events.
// Lines end in LF, CRLF or CR; comments and the fields event, id and retry are skipped; several
// data lines of one event are joined by LF. One owner, one thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace tandem::bench {

class SseParser {
 public:
  using OnData = std::function<void(std::string_view data)>;

  // Calls `on_data` for each event that ends within `bytes`. Fails when one event exceeds
  // kEventBytesMax.
  Status feed(std::string_view bytes, const OnData& on_data);

  static constexpr size_t kEventBytesMax = 16u << 20;

 private:
  void end_line(const OnData& on_data);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;  // The next LF belongs to a CR that was taken already.
};

}  // namespace tandem::bench

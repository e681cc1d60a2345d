// How the end of a failed transfer is logged, by either side. Any thread.
#pragma once

#include <string_view>

#include "common/log.h"
#include "common/status.h"
#include "common/types.h"

namespace tandem::transfer {

// That a client has gone away is ordinary; everything else somebody may want to look at.
inline void log_failure(TransferId transfer, std::string_view side, const Status& reason) {
  constexpr auto kFormat = "event=transfer_failed transfer={:x} side={} reason={}";
  const std::string why = tandem::quoted(reason.to_string());
  if (reason.code() == ErrorCode::kCancelled) {
    log_debug(kFormat, transfer.value, side, why);
  } else {
    log_warn(kFormat, transfer.value, side, why);
  }
}

}  // namespace tandem::transfer

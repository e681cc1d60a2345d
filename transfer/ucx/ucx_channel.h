// UcxChannel: one endpoint. Private to ucx/.
#pragma once

#include "transfer/ucx/ucx_core.h"

namespace tandem::transfer {

// A segment's descriptor before it is sealed: {u64 address, u64 size, packed remote key}.
struct UcxRegion {
  uint64_t address = 0;
  uint64_t size = 0;
};

Result<std::unique_ptr<Channel>> make_ucx_channel(std::shared_ptr<UcxCore> core,
                                                  std::string_view peer_address);

}  // namespace tandem::transfer

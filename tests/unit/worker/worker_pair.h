// A prefill worker and a decode worker in this process, and a router that is linked to both.
#pragma once

#include "common/clock.h"
#include "tests/unit/worker/test_router.h"
#include "worker/worker.h"

namespace tandem::worker {

inline std::unique_ptr<Worker> start_worker(const Config& config, Role role,
                                            const std::string& name) {
  auto worker = make_worker(config, role, name, "127.0.0.1:0");
  TANDEM_CHECK(worker.ok(), worker.status().to_string());
  (*worker)->start();
  return std::move(*worker);
}

struct Pair {
  explicit Pair(const Config& config = quick_config())
      : prefill(start_worker(config, Role::kPrefill, "p0")),
        decode(start_worker(config, Role::kDecode, "d0")) {
    to_prefill = router.connect(prefill->address());
    to_decode = router.connect(decode->address());
  }

  TransferId send(link::Leg leg) {
    leg.transfer.value = random_u64();
    const std::string token = random_bytes(16);
    const link::Hello& peer = to_decode->peer();
    router.send(to_decode, link::DecodeCommand{leg, false, token});
    router.send(to_prefill,
                link::PrefillCommand{leg, decode->address(), peer.name, peer.epoch, token});
    return leg.transfer;
  }
  void cancel(TransferId transfer) {
    router.cancel(to_prefill, transfer);
    router.cancel(to_decode, transfer);
  }
  bool wait_idle() { return router.wait_idle(to_prefill) && router.wait_idle(to_decode); }

  std::unique_ptr<Worker> prefill;
  std::unique_ptr<Worker> decode;
  TestRouter router;
  link::SessionPtr to_prefill;
  link::SessionPtr to_decode;
};

}  // namespace tandem::worker

// UcxCore: one UCX context with one worker, shared by a transport, its channels and its segments,
// so that the worker outlives every endpoint, key and region on it. Private to ucx/.
//
// `mutex` guards the worker and everything that hangs on it; whoever calls ucp_* holds it.
// Callbacks of users never run under it: they go through the delivery queue.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/status.h"
#include "transfer/delivery_queue.h"
#include "transfer/transport.h"

namespace tandem::transfer {

class UcxCore {
 public:
  static Result<std::shared_ptr<UcxCore>> create();
  ~UcxCore();
  UcxCore(const UcxCore&) = delete;
  UcxCore& operator=(const UcxCore&) = delete;

  // Advances the worker, closes what failed, then runs callbacks without the mutex.
  bool progress();
  bool arm();
  int event_fd() const { return event_fd_; }
  const std::string& address() const { return address_; }
  void set_message_handler(Transport::MessageHandler handler);

  // An endpoint, and what its error callback refers to.
  struct Closing {
    ucp_ep_h endpoint = nullptr;
    std::shared_ptr<void> keep;
  };
  // Starts to close an endpoint by force: its pending operations end with an error. Requires: mutex
  // is held.
  void close_endpoint(Closing closing);
  // From an endpoint's error callback, which may not close it itself. Requires: mutex is held.
  void close_later(Closing closing) { failed_.push_back(std::move(closing)); }

  std::mutex mutex;
  DeliveryQueue deliveries;
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;

 private:
  UcxCore() = default;
  Status start();
  Status start_worker();
  static ucs_status_t on_message(void* self, const void* header, size_t header_length, void* data,
                                 size_t length, const ucp_am_recv_param_t* param);

  std::string address_;
  int event_fd_ = -1;
  int closing_ = 0;              // Guarded by mutex: endpoints whose closing has not ended
  std::vector<Closing> failed_;  // Guarded by mutex
  std::mutex handler_mutex_;
  std::shared_ptr<const Transport::MessageHandler> handler_;  // Guarded by handler_mutex_
};

inline constexpr unsigned kUcxMessageId = 1;

Status ucx_status(ucs_status_t status, std::string_view what);

// Opaque bytes that another process hands to UCX, which trusts them: framed with a magic and a
// checksum, so that garbage is refused here.
std::string seal_bytes(std::string_view magic, std::string_view payload);
Result<std::string> open_bytes(std::string_view magic, std::string_view sealed);

}  // namespace tandem::transfer

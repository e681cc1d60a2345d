#include "transfer/ucx/ucx_core.h"

#include <fmt/format.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "common/clock.h"
#include "common/crc32c.h"
#include "common/log.h"
#include "transfer/memory.h"

namespace tandem::transfer {
namespace {

// What a worker's queues in /dev/shm take at most, before any landing memory.
constexpr size_t kShmQueueBytes = 16 << 20;
constexpr auto kCloseDeadline = std::chrono::seconds(1);
constexpr int kProgressRoundsMax = 64;

// UCX must not replace the process's signal handlers. It does so when the library is loaded.
void silence_signal_handlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("UCX_ERROR_SIGNALS") != nullptr) return;
    for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) {
      ucs_debug_disable_signal(signal);
    }
    ucs_global_opts_set_value("ERROR_SIGNALS", "");
    if (std::getenv("UCX_LOG_LEVEL") == nullptr) ucs_global_opts_set_value("LOG_LEVEL", "error");
  });
}

Status configure(ucp_config_t* config) {
  struct Setting {
    const char* name;  // As UCX's tables call it: MM is what POSIX and SYSV have in common
    const char* value;
    std::vector<const char*> variables;  // Any of them set: the user's choice stands
  };
  std::vector<Setting> settings = {
      // Without it, error mode PEER silently takes TCP loopback within a host.
      {"MM_ERROR_HANDLING",
       "y",
       {"UCX_MM_ERROR_HANDLING", "UCX_POSIX_ERROR_HANDLING", "UCX_SYSV_ERROR_HANDLING"}},
      {"KEEPALIVE_INTERVAL", "1s", {"UCX_KEEPALIVE_INTERVAL"}},
      {"TX_SEG_SIZE", "512K", {"UCX_TCP_TX_SEG_SIZE"}},
      {"RX_SEG_SIZE", "512K", {"UCX_TCP_RX_SEG_SIZE"}},
  };
  if (const Status room = check_shm_room(kShmQueueBytes); !room.ok()) {
    // UCX would touch its queues there: a bus error. Whoever has chosen lanes has to choose others.
    if (std::getenv("UCX_TLS") != nullptr) {
      return Status(ErrorCode::kUnavailable, "UCX_TLS is set, but " + room.message());
    }
    log_warn("event=shm_small detail={}", tandem::quoted("posix is left out: " + room.message()));
    settings.push_back({"TLS", "^posix", {}});
  }
  for (const auto& [name, value, variables] : settings) {
    const auto is_set = [](const char* variable) { return std::getenv(variable) != nullptr; };
    if (std::any_of(variables.begin(), variables.end(), is_set)) continue;
    const ucs_status_t status = ucp_config_modify(config, name, value);
    if (status != UCS_OK) return ucx_status(status, fmt::format("setting {}", name));
  }
  return {};
}

}  // namespace

Status ucx_status(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return {};
  const ErrorCode code =
      status == UCS_ERR_CANCELED ? ErrorCode::kCancelled : ErrorCode::kUnavailable;
  return Status(code, fmt::format("UCX: {}: {}", what, ucs_status_string(status)));
}

std::string seal_bytes(std::string_view magic, std::string_view payload) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(payload)));
  std::string sealed(magic);
  sealed.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  return sealed.append(payload);
}

Result<std::string> open_bytes(std::string_view magic, std::string_view sealed) {
  uint32_t crc = 0;
  if (sealed.size() <= magic.size() + sizeof crc || !sealed.starts_with(magic)) {
    return Status(ErrorCode::kInvalidArgument, "not bytes of a UCX peer");
  }
  std::memcpy(&crc, sealed.data() + magic.size(), sizeof crc);
  sealed.remove_prefix(magic.size() + sizeof crc);
  if (crc32c(std::as_bytes(std::span(sealed))) != crc) {
    return Status(ErrorCode::kInvalidArgument, "damaged bytes of a UCX peer");
  }
  return std::string(sealed);
}

Result<std::shared_ptr<UcxCore>> UcxCore::create() {
  std::shared_ptr<UcxCore> core(new UcxCore());
  TANDEM_RETURN_IF_ERROR(core->start());
  return core;
}

Status UcxCore::start() {
  silence_signal_handlers();
  ucp_config_t* config = nullptr;
  TANDEM_RETURN_IF_ERROR(
      ucx_status(ucp_config_read(nullptr, nullptr, &config), "reading settings"));
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> owner(config,
                                                                           &ucp_config_release);
  TANDEM_RETURN_IF_ERROR(configure(config));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  TANDEM_RETURN_IF_ERROR(ucx_status(ucp_init(&params, config, &context), "ucp_init"));
  return start_worker();
}

Status UcxCore::start_worker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  TANDEM_RETURN_IF_ERROR(ucx_status(ucp_worker_create(context, &params, &worker), "worker"));

  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kUcxMessageId;
  handler.cb = &UcxCore::on_message;
  handler.arg = this;
  TANDEM_RETURN_IF_ERROR(
      ucx_status(ucp_worker_set_am_recv_handler(worker, &handler), "message handler"));
  TANDEM_RETURN_IF_ERROR(ucx_status(ucp_worker_get_efd(worker, &event_fd_), "event descriptor"));

  ucp_address_t* address = nullptr;
  size_t length = 0;
  TANDEM_RETURN_IF_ERROR(
      ucx_status(ucp_worker_get_address(worker, &address, &length), "worker address"));
  address_ = seal_bytes("UCXW", std::string_view(reinterpret_cast<const char*>(address), length));
  ucp_worker_release_address(worker, address);
  return {};
}

UcxCore::~UcxCore() {
  if (worker != nullptr) {
    const TimePoint deadline = SystemClock::get().now() + kCloseDeadline;
    const std::lock_guard lock(mutex);
    for (Closing& closing : failed_) close_endpoint(std::move(closing));
    while (closing_ > 0 && SystemClock::get().now() < deadline) ucp_worker_progress(worker);
    ucp_worker_destroy(worker);
  }
  if (context != nullptr) ucp_cleanup(context);
}

bool UcxCore::progress() {
  bool moved = false;
  {
    const std::lock_guard lock(mutex);
    for (int round = 0; round < kProgressRoundsMax && ucp_worker_progress(worker) != 0; ++round) {
      moved = true;
    }
    for (Closing& closing : std::exchange(failed_, {})) close_endpoint(std::move(closing));
  }
  return deliveries.deliver() || moved;
}

bool UcxCore::arm() {
  if (!deliveries.empty()) return false;
  const std::lock_guard lock(mutex);
  return ucp_worker_arm(worker) == UCS_OK;
}

void UcxCore::set_message_handler(Transport::MessageHandler handler) {
  auto shared = std::make_shared<const Transport::MessageHandler>(std::move(handler));
  const std::lock_guard lock(handler_mutex_);
  handler_ = std::move(shared);
}

ucs_status_t UcxCore::on_message(void* self, const void*, size_t, void* data, size_t length,
                                 const ucp_am_recv_param_t* param) {
  auto* core = static_cast<UcxCore*>(self);
  // A rendezvous would need a receive of its own; our senders never start one.
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_ERR_UNSUPPORTED;
  core->deliveries.add([core, message = std::string(static_cast<const char*>(data), length)] {
    std::shared_ptr<const Transport::MessageHandler> handler;
    {
      const std::lock_guard lock(core->handler_mutex_);
      handler = core->handler_;
    }
    if (handler && *handler) (*handler)(message);
  });
  return UCS_OK;
}

void UcxCore::close_endpoint(Closing closing) {
  struct Pending {
    UcxCore& core;
    Closing closing;
  };
  auto pending = std::make_unique<Pending>(Pending{*this, std::move(closing)});
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = [](void* request, ucs_status_t, void* user_data) {
    ucp_request_free(request);
    const std::unique_ptr<Pending> ended(static_cast<Pending*>(user_data));
    --ended->core.closing_;
  };
  param.user_data = pending.get();
  if (UCS_PTR_IS_PTR(ucp_ep_close_nbx(pending->closing.endpoint, &param))) {
    ++closing_;
    static_cast<void>(pending.release());  // The callback owns it now
  }
}

}  // namespace tandem::transfer

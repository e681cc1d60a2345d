#include "transfer/ucx/ucx_channel.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/log.h"
#include "transfer/memory.h"

namespace tandem::transfer {
namespace {

// What requests that are under way refer to; outlives the channel, not the core: they end with its
// worker.
struct Endpoint : std::enable_shared_from_this<Endpoint> {
  explicit Endpoint(UcxCore& owner) : core(owner) {}

  // Requires: core.mutex is held.
  void fail(Status reason) {
    if (failure.ok()) failure = std::move(reason);
    if (handle != nullptr) core.close_later({std::exchange(handle, nullptr), shared_from_this()});
  }

  UcxCore& core;
  ucp_ep_h handle = nullptr;  // Guarded by core.mutex; null once closed
  Status failure;             // Guarded by core.mutex
};

struct Notification {
  std::shared_ptr<Endpoint> endpoint;
  std::string message;
  std::function<void(const Status&)> done;
};

void on_error(void* arg, ucp_ep_h, ucs_status_t status) {
  static_cast<Endpoint*>(arg)->fail(ucx_status(status, "peer lost"));
}

// Requires of all below: the core's mutex is held. Owns `notification`.
void report(std::unique_ptr<Notification> notification, Status status) {
  if (!notification->endpoint->failure.ok()) status = notification->endpoint->failure;
  UcxCore& core = notification->endpoint->core;
  core.deliveries.add([done = std::move(notification->done), status] { done(status); });
}

void on_sent(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  report(std::unique_ptr<Notification>(static_cast<Notification*>(user_data)),
         ucx_status(status, "message"));
}

ucp_request_param_t callback_param(ucp_send_nbx_callback_t callback, void* user_data) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = callback;
  param.user_data = user_data;
  return param;
}

void send_message(std::unique_ptr<Notification> notification) {
  Endpoint& endpoint = *notification->endpoint;
  if (endpoint.handle == nullptr) return report(std::move(notification), endpoint.failure);
  ucp_request_param_t param = callback_param(&on_sent, notification.get());
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  const std::string& message = notification->message;
  void* request = ucp_am_send_nbx(endpoint.handle, kUcxMessageId, nullptr, 0, message.data(),
                                  message.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(notification.release());  // on_sent owns it now
  } else {
    report(std::move(notification), ucx_status(UCS_PTR_STATUS(request), "message"));
  }
}

void on_flushed(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  std::unique_ptr<Notification> notification(static_cast<Notification*>(user_data));
  if (status == UCS_OK) return send_message(std::move(notification));
  report(std::move(notification), ucx_status(status, "flush"));
}

// The endpoint lives: its channel holds it, and then its closing, which ends after every request on
// it.
void on_put(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  if (status != UCS_OK) static_cast<Endpoint*>(user_data)->fail(ucx_status(status, "put"));
}

class UcxRemoteSegment final : public RemoteSegment {
 public:
  UcxRemoteSegment(std::shared_ptr<UcxCore> core, ucp_rkey_h key, UcxRegion region, bool mapped)
      : core_(std::move(core)), key_(key), region_(region), mapped_(mapped) {}
  ~UcxRemoteSegment() override {
    const std::lock_guard lock(core_->mutex);
    ucp_rkey_destroy(key_);
  }
  size_t size() const override { return region_.size; }
  bool put_is_copy() const override { return mapped_; }
  uint64_t address() const { return region_.address; }
  ucp_rkey_h key() const { return key_; }

 private:
  const std::shared_ptr<UcxCore> core_;
  const ucp_rkey_h key_;
  const UcxRegion region_;
  const bool mapped_;
};

// Names the lanes of an endpoint, e.g. "sysv/memory tcp/lo".
std::string lanes_of(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t length = 0;
  std::FILE* stream = ::open_memstream(&text, &length);
  if (stream == nullptr) return "unknown";
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  std::string lanes;
  for (std::string_view rest(text, length); !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    // "#   lane[0]:  2:sysv/memory.0 md[2]  -> ..."
    const size_t lane = line.find("lane[");
    const size_t colon = lane == line.npos ? line.npos : line.find(':', line.find("]:", lane) + 2);
    if (colon == line.npos) continue;
    const std::string_view name = line.substr(colon + 1);
    if (!lanes.empty()) lanes += ' ';
    lanes += name.substr(0, name.find(' '));
  }
  std::free(text);
  return lanes;
}

class UcxChannel final : public Channel {
 public:
  UcxChannel(std::shared_ptr<UcxCore> core, std::shared_ptr<Endpoint> endpoint)
      : core_(std::move(core)), endpoint_(std::move(endpoint)) {}
  ~UcxChannel() override { close(); }

  Result<std::shared_ptr<RemoteSegment>> attach(std::string_view descriptor) override {
    const auto opened = open_bytes("UCXM", descriptor);
    if (!opened) return opened.status();
    UcxRegion region;
    if (opened->size() <= sizeof region) {
      return Status(ErrorCode::kInvalidArgument, "a UCX segment without a key");
    }
    std::memcpy(&region, opened->data(), sizeof region);
    ucp_rkey_h key = nullptr;
    void* mapped = nullptr;
    {
      const std::lock_guard lock(core_->mutex);
      if (endpoint_->handle == nullptr) return endpoint_->failure;
      TANDEM_RETURN_IF_ERROR(
          ucx_status(ucp_ep_rkey_unpack(endpoint_->handle, opened->data() + sizeof region, &key),
                     "remote key"));
      if (ucp_rkey_ptr(key, region.address, &mapped) != UCS_OK) mapped = nullptr;
    }
    // The first touch of a page costs more than writing it; it is due before the prompt runs.
    if (mapped != nullptr) prefault(std::span(static_cast<std::byte*>(mapped), region.size));
    return std::shared_ptr<RemoteSegment>(
        std::make_shared<UcxRemoteSegment>(core_, key, region, mapped != nullptr));
  }

  Status put(RemoteSegment& segment, size_t offset, std::span<const std::byte> source) override {
    auto* target = dynamic_cast<UcxRemoteSegment*>(&segment);
    if (target == nullptr || offset > target->size() || source.size() > target->size() - offset) {
      return Status(ErrorCode::kInvalidArgument, "a put beyond its segment");
    }
    const std::lock_guard lock(core_->mutex);
    if (endpoint_->handle == nullptr) return endpoint_->failure;
    const ucp_request_param_t param = callback_param(&on_put, endpoint_.get());
    void* request = ucp_put_nbx(endpoint_->handle, source.data(), source.size(),
                                target->address() + offset, target->key(), &param);
    if (UCS_PTR_IS_PTR(request)) return {};
    const Status status = ucx_status(UCS_PTR_STATUS(request), "put");
    if (!status.ok()) endpoint_->fail(status);
    return status;
  }

  Status notify(std::string message, std::function<void(const Status&)> done) override {
    auto notification = std::make_unique<Notification>(
        Notification{endpoint_, std::move(message), std::move(done)});
    const std::lock_guard lock(core_->mutex);
    // A failed endpoint must not be flushed: on shared memory that never ends.
    if (endpoint_->handle == nullptr) return endpoint_->failure;
    const ucp_request_param_t param = callback_param(&on_flushed, notification.get());
    void* request = ucp_ep_flush_nbx(endpoint_->handle, &param);
    if (request == nullptr) {
      send_message(std::move(notification));
    } else if (UCS_PTR_IS_PTR(request)) {
      static_cast<void>(notification.release());  // on_flushed owns it now
    } else {
      const Status status = ucx_status(UCS_PTR_STATUS(request), "flush");
      endpoint_->fail(status);
      return status;
    }
    return {};
  }

  bool progress() override { return core_->progress(); }

  void close() override {
    const std::lock_guard lock(core_->mutex);
    if (endpoint_->failure.ok()) {
      endpoint_->failure = Status(ErrorCode::kCancelled, "the channel is closed");
    }
    if (endpoint_->handle != nullptr) {
      core_->close_endpoint({std::exchange(endpoint_->handle, nullptr), endpoint_});
    }
  }

 private:
  const std::shared_ptr<UcxCore> core_;
  const std::shared_ptr<Endpoint> endpoint_;
};

}  // namespace

Result<std::unique_ptr<Channel>> make_ucx_channel(std::shared_ptr<UcxCore> core,
                                                  std::string_view peer_address) {
  const auto address = open_bytes("UCXW", peer_address);
  if (!address) return address.status();
  auto endpoint = std::make_shared<Endpoint>(*core);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address->data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &on_error;
  params.err_handler.arg = endpoint.get();
  std::string lanes;
  {
    const std::lock_guard lock(core->mutex);
    TANDEM_RETURN_IF_ERROR(
        ucx_status(ucp_ep_create(core->worker, &params, &endpoint->handle), "endpoint"));
    lanes = lanes_of(endpoint->handle);
  }
  log_info("event=ucx_channel lanes={}", tandem::quoted(lanes));
  return std::unique_ptr<Channel>(
      std::make_unique<UcxChannel>(std::move(core), std::move(endpoint)));
}

}  // namespace tandem::transfer

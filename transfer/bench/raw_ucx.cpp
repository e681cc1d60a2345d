#include "transfer/bench/raw_ucx.h"

#include <cstring>

#include "common/status.h"

namespace tandem::transfer {
namespace {

constexpr unsigned kMessageId = 1;

void must(ucs_status_t status, const char* what) {
  TANDEM_CHECK(status == UCS_OK, std::string(what) + ": " + ucs_status_string(status));
}

}  // namespace

RawUcx::RawUcx() {
  ucp_config_t* config = nullptr;
  must(ucp_config_read(nullptr, nullptr, &config), "config");
  must(ucp_config_modify(config, "MM_ERROR_HANDLING", "y"), "error handling");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM;
  must(ucp_init(&params, config, &context_), "init");
  ucp_config_release(config);
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SINGLE;
  must(ucp_worker_create(context_, &worker, &worker_), "worker");
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.arg = this;
  handler.cb = [](void* self, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
    ++static_cast<RawUcx*>(self)->received_;
    return UCS_OK;
  };
  must(ucp_worker_set_am_recv_handler(worker_, &handler), "handler");
}

RawUcx::~RawUcx() {
  if (remote_key_ != nullptr) ucp_rkey_destroy(remote_key_);
  if (endpoint_ != nullptr) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    wait(ucp_ep_close_nbx(endpoint_, &param));
  }
  if (memory_ != nullptr) ucp_mem_unmap(context_, memory_);
  ucp_worker_destroy(worker_);
  ucp_cleanup(context_);
}

std::span<std::byte> RawUcx::allocate(size_t bytes) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  must(ucp_mem_map(context_, &params, &memory_), "memory");
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  must(ucp_mem_query(memory_, &attributes), "query");
  local_address_ = reinterpret_cast<uint64_t>(attributes.address);
  std::memset(attributes.address, 0, bytes);
  return {static_cast<std::byte*>(attributes.address), bytes};
}

std::string RawUcx::address() const {
  ucp_address_t* address = nullptr;
  size_t length = 0;
  must(ucp_worker_get_address(worker_, &address, &length), "address");
  std::string text(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  return text;
}

std::string RawUcx::key() const {
  void* key = nullptr;
  size_t length = 0;
  must(ucp_rkey_pack(context_, memory_, &key, &length), "key");
  std::string text(reinterpret_cast<const char*>(&local_address_), sizeof local_address_);
  text.append(static_cast<const char*>(key), length);
  ucp_rkey_buffer_release(key);
  return text;
}

void RawUcx::connect(const std::string& address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
  must(ucp_ep_create(worker_, &params, &endpoint_), "endpoint");
}

void RawUcx::attach(const std::string& key) {
  std::memcpy(&remote_address_, key.data(), sizeof remote_address_);
  must(ucp_ep_rkey_unpack(endpoint_, key.data() + sizeof remote_address_, &remote_key_), "unpack");
}

void RawUcx::wait(void* request) {
  if (request == nullptr) return;
  TANDEM_CHECK(!UCS_PTR_IS_ERR(request), ucs_status_string(UCS_PTR_STATUS(request)));
  while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker_);
  ucp_request_free(request);
}

void RawUcx::put(size_t offset, std::span<const std::byte> source) {
  const ucp_request_param_t param{};
  wait(ucp_put_nbx(endpoint_, source.data(), source.size(), remote_address_ + offset, remote_key_,
                   &param));
}

void RawUcx::flush() {
  const ucp_request_param_t param{};
  wait(ucp_ep_flush_nbx(endpoint_, &param));
}

void RawUcx::send(std::string_view message) {
  const ucp_request_param_t param{};
  wait(ucp_am_send_nbx(endpoint_, kMessageId, nullptr, 0, message.data(), message.size(), &param));
}

void RawUcx::await(uint64_t count) {
  while (received_ < count) ucp_worker_progress(worker_);
}

}  // namespace tandem::transfer

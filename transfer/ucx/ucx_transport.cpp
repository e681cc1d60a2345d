#include "transfer/ucx/ucx_transport.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "transfer/memory.h"
#include "transfer/ucx/ucx_channel.h"

namespace tandem::transfer {
namespace {

// Where the mapping that holds `address` comes from: "/SYSV00000000", "/dev/shm/...", or empty
// (anonymous).
std::string backing_of(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    if (wanted < begin || wanted >= end) continue;
    const size_t path = line.find('/');
    return path == line.npos ? "" : line.substr(path);
  }
  return "";
}

class UcxSegment final : public Segment {
 public:
  UcxSegment(std::shared_ptr<UcxCore> core, ucp_mem_h handle)
      : core_(std::move(core)), handle_(handle) {}
  ~UcxSegment() override {
    const std::lock_guard lock(core_->mutex);
    ucp_mem_unmap(core_->context, handle_);
  }

  Status start() {
    const std::lock_guard lock(core_->mutex);
    ucp_mem_attr_t attributes{};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
    TANDEM_RETURN_IF_ERROR(ucx_status(ucp_mem_query(handle_, &attributes), "memory"));
    memory_ = std::span(static_cast<std::byte*>(attributes.address), attributes.length);
    void* key = nullptr;
    size_t key_bytes = 0;
    TANDEM_RETURN_IF_ERROR(
        ucx_status(ucp_rkey_pack(core_->context, handle_, &key, &key_bytes), "remote key"));
    const UcxRegion region{reinterpret_cast<uint64_t>(attributes.address), attributes.length};
    std::string payload(reinterpret_cast<const char*>(&region), sizeof region);
    payload.append(static_cast<const char*>(key), key_bytes);
    ucp_rkey_buffer_release(key);
    descriptor_ = seal_bytes("UCXM", payload);
    return {};
  }

  std::span<std::byte> memory() override { return memory_; }
  std::string descriptor() const override { return descriptor_; }

 private:
  const std::shared_ptr<UcxCore> core_;
  const ucp_mem_h handle_;
  std::span<std::byte> memory_;
  std::string descriptor_;
};

// Does UCX_TLS, the user's own choice of lanes, leave shared memory in the game?
bool shared_memory_wanted() {
  const char* lanes = std::getenv("UCX_TLS");
  if (lanes == nullptr) return true;
  const std::string_view names(lanes);
  for (const char* name : {"all", "posix", "sysv", "sm", "mm", "shm", "xpmem"}) {
    if (names.find(name) != names.npos) return true;
  }
  return false;
}

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(std::shared_ptr<UcxCore> core) : core_(std::move(core)) {
    std::error_code ignored;
    rdma_ = std::filesystem::exists("/sys/class/infiniband", ignored) &&
            !std::filesystem::is_empty("/sys/class/infiniband", ignored);
  }

  std::string_view name() const override { return "ucx"; }
  Capabilities capabilities() const override {
    // Over plain TCP our own sockets are several times faster than UCX.
    return {.one_sided = true, .between_hosts = rdma_, .message_bytes_max = 64 << 10};
  }
  std::string address() const override { return core_->address(); }

  Result<std::unique_ptr<Segment>> allocate(size_t bytes) override {
    TANDEM_RETURN_IF_ERROR(check_memory_room(bytes));
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    params.length = bytes;
    params.flags = UCP_MEM_MAP_ALLOCATE;
    const Status shm_room = check_shm_room(bytes);
    ucp_mem_h handle = nullptr;
    {
      const std::lock_guard lock(core_->mutex);
      const ucs_status_t status = ucp_mem_map(core_->context, &params, &handle);
      if (status != UCS_OK) {
        return Status(ErrorCode::kResourceExhausted,
                      ucx_status(status, "landing memory").message());
      }
    }
    auto segment = std::make_unique<UcxSegment>(core_, handle);
    TANDEM_RETURN_IF_ERROR(segment->start());
    const std::string backing = backing_of(segment->memory().data());
    if (backing.empty() && shared_memory_wanted()) {  // No peer could map it
      return Status(ErrorCode::kResourceExhausted, "UCX found no shared memory for landing");
    }
    if (backing.starts_with("/dev/shm")) TANDEM_RETURN_IF_ERROR(shm_room);
    prefault(segment->memory());
    return std::unique_ptr<Segment>(std::move(segment));
  }

  Result<std::unique_ptr<Segment>> share(std::span<std::byte>) override {
    return Status(ErrorCode::kFailedPrecondition, "UCX landing memory must come from UCX");
  }
  Result<std::unique_ptr<Channel>> connect(std::string_view peer_address,
                                           std::string_view) override {
    return make_ucx_channel(core_, peer_address);
  }
  void set_message_handler(MessageHandler handler) override {
    core_->set_message_handler(std::move(handler));
  }
  bool progress() override { return core_->progress(); }
  int event_fd() const override { return core_->event_fd(); }
  bool arm() override { return core_->arm(); }
  std::string description() const override {
    return fmt::format("UCX {}, error mode peer, {}", ucp_get_version_string(),
                       rdma_ ? "shared memory and RDMA" : "shared memory; TCP between hosts");
  }

 private:
  const std::shared_ptr<UcxCore> core_;
  bool rdma_ = false;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_ucx_transport() {
  auto core = UcxCore::create();
  if (!core) return core.status();
  return std::unique_ptr<Transport>(std::make_unique<UcxTransport>(*std::move(core)));
}

}  // namespace tandem::transfer

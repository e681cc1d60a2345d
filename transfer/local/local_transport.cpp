#include "transfer/local/local_transport.h"

#include <sys/eventfd.h>

#include <atomic>
#include <cstring>
#include <map>

#include "common/random.h"
#include "common/unique_fd.h"
#include "transfer/delivery_queue.h"
#include "transfer/memory.h"

namespace tandem::transfer {
namespace {

// What a channel reaches of its peer; outlives either.
struct Inbox {
  UniqueFd event{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  DeliveryQueue queue;
  std::mutex mutex;
  Transport::MessageHandler handler;                  // Guarded by mutex
  std::map<uint64_t, std::span<std::byte>> segments;  // Guarded by mutex

  void add(std::function<void()> callback) {
    queue.add(std::move(callback));
    ::eventfd_write(event.get(), 1);
  }
  void handle(const std::string& message) {
    Transport::MessageHandler current;
    {
      const std::lock_guard lock(mutex);
      current = handler;
    }
    if (current) current(message);
  }
};

// Every local transport of this process, by id.
struct Registry {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<Inbox>> inboxes;  // Guarded by mutex
};

Registry& registry() {
  static Registry instance;
  return instance;
}

std::string encode_id(uint64_t id) {
  return std::string(reinterpret_cast<const char*>(&id), sizeof id);
}

Result<uint64_t> decode_id(std::string_view text) {
  if (text.size() != sizeof(uint64_t)) {
    return Status(ErrorCode::kInvalidArgument, "not a local address");
  }
  uint64_t id = 0;
  std::memcpy(&id, text.data(), sizeof id);
  return id;
}

class LocalSegment final : public Segment {
 public:
  LocalSegment(std::shared_ptr<Inbox> inbox, MappedMemory owned)
      : inbox_(std::move(inbox)), owned_(std::move(owned)), id_(random_u64()) {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->segments[id_] = owned_.bytes();
  }
  ~LocalSegment() override {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->segments.erase(id_);
  }
  std::span<std::byte> memory() override { return owned_.bytes(); }
  std::string descriptor() const override { return encode_id(id_); }

 private:
  const std::shared_ptr<Inbox> inbox_;
  const MappedMemory owned_;
  const uint64_t id_;
};

class LocalRemoteSegment final : public RemoteSegment {
 public:
  explicit LocalRemoteSegment(std::span<std::byte> target) : bytes(target) {}
  size_t size() const override { return bytes.size(); }
  bool put_is_copy() const override { return true; }

  const std::span<std::byte> bytes;
};

class LocalChannel final : public Channel {
 public:
  LocalChannel(std::shared_ptr<Inbox> own, std::weak_ptr<Inbox> peer)
      : own_(std::move(own)), peer_(std::move(peer)) {}
  ~LocalChannel() override { close(); }

  Result<std::shared_ptr<RemoteSegment>> attach(std::string_view descriptor) override {
    auto id = decode_id(descriptor);
    if (!id) return id.status();
    const auto peer = peer_.lock();
    if (!peer) return Status(ErrorCode::kUnavailable, "the local peer is gone");
    const std::lock_guard lock(peer->mutex);
    const auto found = peer->segments.find(*id);
    if (found == peer->segments.end()) {
      return Status(ErrorCode::kInvalidArgument, "no such local segment");
    }
    return std::shared_ptr<RemoteSegment>(std::make_shared<LocalRemoteSegment>(found->second));
  }

  Status put(RemoteSegment& segment, size_t offset, std::span<const std::byte> source) override {
    auto* target = dynamic_cast<LocalRemoteSegment*>(&segment);
    if (target == nullptr || offset > target->size() || source.size() > target->size() - offset) {
      return Status(ErrorCode::kInvalidArgument, "a put beyond its segment");
    }
    if (closed_) return Status(ErrorCode::kCancelled, "the channel is closed");
    std::memcpy(target->bytes.data() + offset, source.data(), source.size());
    return {};
  }

  Status notify(std::string message, std::function<void(const Status&)> done) override {
    if (closed_) return Status(ErrorCode::kCancelled, "the channel is closed");
    const auto peer = peer_.lock();
    if (!peer) return Status(ErrorCode::kUnavailable, "the local peer is gone");
    peer->add([weak = peer_, text = std::move(message)] {
      if (const auto inbox = weak.lock()) inbox->handle(text);
    });
    own_->add([report = std::move(done)] { report(Status()); });
    return {};
  }

  bool progress() override { return own_->queue.deliver(); }
  void close() override { closed_ = true; }

 private:
  const std::shared_ptr<Inbox> own_;
  const std::weak_ptr<Inbox> peer_;
  std::atomic<bool> closed_ = false;
};

class LocalTransport final : public Transport {
 public:
  LocalTransport() {
    const std::lock_guard lock(registry().mutex);
    registry().inboxes[id_] = inbox_;
  }
  ~LocalTransport() override {
    const std::lock_guard lock(registry().mutex);
    registry().inboxes.erase(id_);
  }

  std::string_view name() const override { return "local"; }
  Capabilities capabilities() const override {
    return {.one_sided = true, .between_hosts = false, .message_bytes_max = 64 << 10};
  }
  std::string address() const override { return encode_id(id_); }

  Result<std::unique_ptr<Segment>> allocate(size_t bytes) override {
    auto memory = MappedMemory::allocate(bytes);
    if (!memory) return memory.status();
    return std::unique_ptr<Segment>(std::make_unique<LocalSegment>(inbox_, *std::move(memory)));
  }
  Result<std::unique_ptr<Segment>> share(std::span<std::byte>) override {
    return Status(ErrorCode::kFailedPrecondition, "local writes cannot be stopped");
  }

  Result<std::unique_ptr<Channel>> connect(std::string_view peer_address,
                                           std::string_view) override {
    auto id = decode_id(peer_address);
    if (!id) return id.status();
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().inboxes.find(*id);
    if (found == registry().inboxes.end()) {
      return Status(ErrorCode::kUnavailable, "no such local transport");
    }
    return std::unique_ptr<Channel>(std::make_unique<LocalChannel>(inbox_, found->second));
  }

  void set_message_handler(MessageHandler handler) override {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->handler = std::move(handler);
  }
  bool progress() override { return inbox_->queue.deliver(); }
  int event_fd() const override { return inbox_->event.get(); }
  bool arm() override {
    eventfd_t count = 0;
    ::eventfd_read(inbox_->event.get(), &count);
    return inbox_->queue.empty();
  }
  std::string description() const override { return "memcpy within the process"; }

 private:
  const uint64_t id_ = random_u64();
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
};

}  // namespace

std::unique_ptr<Transport> make_local_transport() { return std::make_unique<LocalTransport>(); }

}  // namespace tandem::transfer

#include "transfer/fault/fault_transport.h"

#include <fmt/format.h>

#include <atomic>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/random.h"
#include "transfer/delivery_queue.h"

namespace tandem::transfer {
namespace {

// What a dropped message travels as: the puts before it have ended when it is reported, as after
// any message, but the peer's user never sees it.
constexpr std::string_view kLost{"\0lost", 5};

// Counts operations over all channels, so that a seed replays a run of one stream exactly.
class Dice {
 public:
  explicit Dice(const FaultSpec& faults) : spec(faults) {}
  bool hits(double share) { return share > 0 && counter_uniform(spec.seed, draw_++) < share; }
  uint64_t below(uint64_t bound) { return counter_random(spec.seed, draw_++) % bound; }
  uint64_t next_put() { return ++puts_; }

  const FaultSpec spec;

 private:
  std::atomic<uint64_t> draw_ = 0;
  std::atomic<uint64_t> puts_ = 0;
};

// Runs operations in order, each some time after it was added, on a thread of its own.
class DelayLine {
 public:
  explicit DelayLine(Dice& dice) : dice_(dice) {}
  ~DelayLine() { stop(); }

  void add(std::function<void()> operation) {
    const auto delay = std::chrono::microseconds(dice_.below(dice_.spec.delay_ms * 1000 + 1));
    const std::lock_guard lock(mutex_);
    due_ = std::max(due_, SystemClock::get().now() + delay);
    waiting_.emplace_back(due_, std::move(operation));
    changed_.notify_all();
  }

  // What waits is dropped; what runs has ended. Idempotent.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    const std::lock_guard lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
    waiting_.clear();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (waiting_.empty()) {
        changed_.wait(lock);
      } else if (SystemClock::get().now() < waiting_.front().first) {
        changed_.wait_until(lock, waiting_.front().first);
      } else {
        const auto operation = std::move(waiting_.front().second);
        waiting_.pop_front();
        lock.unlock();
        operation();
        lock.lock();
      }
    }
  }

  Dice& dice_;
  std::mutex join_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;                                            // Guarded by mutex_
  TimePoint due_{};                                                  // Guarded by mutex_
  std::deque<std::pair<TimePoint, std::function<void()>>> waiting_;  // Guarded by mutex_
  std::thread thread_{[this] { run(); }};
};

using Done = std::function<void(const Status&)>;

// `done`, to be run once whatever happens: when it is dropped unrun, it reports the cancellation
// later.
class Promise {
 public:
  Promise(DeliveryQueue& deliveries, Done done) : deliveries_(deliveries), done_(std::move(done)) {}
  ~Promise() { settle(Status(ErrorCode::kCancelled, "the channel is closed")); }

  void settle(Status status) {
    if (Done done = std::exchange(done_, nullptr)) {
      deliveries_.add([done = std::move(done), status = std::move(status)] { done(status); });
    }
  }

 private:
  DeliveryQueue& deliveries_;
  Done done_;
};

class FaultChannel final : public Channel {
 public:
  FaultChannel(std::unique_ptr<Channel> inner, Dice& dice, DeliveryQueue& deliveries)
      : inner_(std::move(inner)), dice_(dice), deliveries_(deliveries) {
    if (dice_.spec.delay_ms > 0) delays_ = std::make_unique<DelayLine>(dice_);
  }
  ~FaultChannel() override { close(); }

  Result<std::shared_ptr<RemoteSegment>> attach(std::string_view descriptor) override {
    return inner_->attach(descriptor);
  }

  Status put(RemoteSegment& segment, size_t offset, std::span<const std::byte> source) override {
    if (offset > segment.size() || source.size() > segment.size() - offset) {
      return Status(ErrorCode::kInvalidArgument, "a put beyond its segment");
    }
    if (closed_) return Status(ErrorCode::kCancelled, "the channel is closed");
    const uint64_t index = dice_.next_put();
    if (index == dice_.spec.exit_at) ::raise(SIGKILL);
    if (index == dice_.spec.kill_at) {
      inner_->close();
      broken_ = true;
    }
    if (broken_) return Status(ErrorCode::kUnavailable, "fault: the channel was killed");
    if (dice_.hits(dice_.spec.drop)) return {};
    if (!source.empty() && dice_.hits(dice_.spec.corrupt)) source = spoil(source);
    if (!delays_) return inner_->put(segment, offset, source);
    delays_->add([this, target = segment.shared_from_this(), offset, source] {
      if (!inner_->put(*target, offset, source).ok()) broken_ = true;
    });
    return {};
  }

  Status notify(std::string message, Done done) override {
    if (closed_) return Status(ErrorCode::kCancelled, "the channel is closed");
    if (broken_) return Status(ErrorCode::kUnavailable, "fault: the channel was killed");
    if (dice_.hits(dice_.spec.drop_message)) message = kLost;
    if (!delays_) return inner_->notify(std::move(message), std::move(done));
    auto promise = std::make_shared<Promise>(deliveries_, std::move(done));
    delays_->add([this, promise, text = std::move(message)]() mutable {
      const Status status = inner_->notify(
          std::move(text), [promise](const Status& result) { promise->settle(result); });
      if (!status.ok()) promise->settle(status);
    });
    return {};
  }

  bool progress() override { return inner_->progress(); }
  void close() override {
    closed_ = true;
    if (delays_) delays_->stop();
    inner_->close();
  }

 private:
  // A copy with one bit wrong. Kept until the channel goes, as its put may be read until then.
  std::span<const std::byte> spoil(std::span<const std::byte> source) {
    std::vector<std::byte> copy(source.begin(), source.end());
    copy[dice_.below(copy.size())] ^= std::byte(1u << dice_.below(8));
    const std::lock_guard lock(mutex_);
    return spoiled_.emplace_back(std::move(copy));
  }

  const std::unique_ptr<Channel> inner_;
  Dice& dice_;
  DeliveryQueue& deliveries_;
  std::atomic<bool> broken_ = false;
  std::atomic<bool> closed_ = false;
  std::mutex mutex_;
  std::deque<std::vector<std::byte>> spoiled_;  // Guarded by mutex_
  std::unique_ptr<DelayLine> delays_;           // Last: its thread uses all of the above
};

class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> inner, FaultSpec spec)
      : inner_(std::move(inner)), name_(fmt::format("fault+{}", inner_->name())), dice_(spec) {}

  std::string_view name() const override { return name_; }
  Capabilities capabilities() const override { return inner_->capabilities(); }
  std::string address() const override { return inner_->address(); }
  Result<std::unique_ptr<Segment>> allocate(size_t bytes) override {
    return inner_->allocate(bytes);
  }
  Result<std::unique_ptr<Segment>> share(std::span<std::byte> memory) override {
    return inner_->share(memory);
  }
  Result<std::unique_ptr<Channel>> connect(std::string_view peer_address,
                                           std::string_view peer_host) override {
    auto channel = inner_->connect(peer_address, peer_host);
    if (!channel) return channel.status();
    return std::unique_ptr<Channel>(
        std::make_unique<FaultChannel>(*std::move(channel), dice_, deliveries_));
  }
  void set_message_handler(MessageHandler handler) override {
    if (!handler) return inner_->set_message_handler(nullptr);
    inner_->set_message_handler([handler = std::move(handler)](std::string_view message) {
      if (message != kLost) handler(message);
    });
  }
  bool progress() override {
    const bool moved = inner_->progress();
    return deliveries_.deliver() || moved;
  }
  int event_fd() const override { return inner_->event_fd(); }
  bool arm() override { return deliveries_.empty() && inner_->arm(); }
  std::string description() const override { return "with faults: " + inner_->description(); }

 private:
  const std::unique_ptr<Transport> inner_;
  const std::string name_;
  Dice dice_;
  DeliveryQueue deliveries_;
};

template <class Number>
bool read(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<FaultSpec> FaultSpec::parse(std::string_view text) {
  FaultSpec spec;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = std::min(item.find('='), item.size());
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = item.substr(std::min(item.size(), equals + 1));
    const bool known = key == "seed"           ? read(value, spec.seed)
                       : key == "drop"         ? read(value, spec.drop)
                       : key == "drop_message" ? read(value, spec.drop_message)
                       : key == "corrupt"      ? read(value, spec.corrupt)
                       : key == "delay_ms"     ? read(value, spec.delay_ms)
                       : key == "kill_at"      ? read(value, spec.kill_at)
                       : key == "exit_at"      ? read(value, spec.exit_at)
                                               : false;
    if (!known || spec.delay_ms > 60000) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("transfer.fault: bad item '{}'", item));
    }
  }
  return spec;
}

std::unique_ptr<Transport> make_fault_transport(std::unique_ptr<Transport> inner, FaultSpec spec) {
  return std::make_unique<FaultTransport>(std::move(inner), spec);
}

}  // namespace tandem::transfer

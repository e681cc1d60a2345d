#include "transfer/self_test.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "common/clock.h"

namespace tandem::transfer {
namespace {

constexpr size_t kBlockBytes = 1 << 20;
constexpr int kBlocks = 4;
constexpr int kRounds = 4;
constexpr auto kDeadline = std::chrono::seconds(3);
constexpr auto kPollInterval = std::chrono::milliseconds(1);

// What the callbacks report, possibly from a transport's thread.
struct Outcome {
  std::mutex mutex;
  std::condition_variable changed;
  int messages = 0;
  int done = 0;
  Status status;
};

// Polls both ends until `rounds` messages have arrived and are acknowledged.
Status await(Transport& target, Transport& source, Outcome& outcome, int rounds) {
  const TimePoint deadline = SystemClock::get().now() + kDeadline;
  while (SystemClock::get().now() < deadline) {
    const bool received = target.progress();
    const bool moved = source.progress() || received;
    std::unique_lock lock(outcome.mutex);
    if (!outcome.status.ok()) return outcome.status;
    if (outcome.messages >= rounds && outcome.done >= rounds) return {};
    if (!moved) outcome.changed.wait_for(lock, kPollInterval);
  }
  return Status(ErrorCode::kDeadlineExceeded, "self-test: no answer in time");
}

double gb_per_s(size_t bytes, Duration elapsed) {
  return double(bytes) / std::max(1.0, double(elapsed.count()));
}

double copy_speed(std::span<std::byte> to, std::span<const std::byte> from) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const TimePoint begin = SystemClock::get().now();
    std::memcpy(to.data(), from.data(), from.size());
    best = std::max(best, gb_per_s(from.size(), SystemClock::get().now() - begin));
  }
  return best;
}

Status run_round(Channel& channel, RemoteSegment& remote, std::span<const std::byte> data,
                 const std::shared_ptr<Outcome>& outcome) {
  for (size_t offset = 0; offset < data.size(); offset += kBlockBytes) {
    TANDEM_RETURN_IF_ERROR(channel.put(remote, offset, data.subspan(offset, kBlockBytes)));
  }
  return channel.notify("self-test", [outcome](const Status& status) {
    const std::lock_guard lock(outcome->mutex);
    if (!status.ok() && outcome->status.ok()) outcome->status = status;
    ++outcome->done;
    outcome->changed.notify_all();
  });
}

}  // namespace

Result<SelfTestReport> self_test(Transport& target, Transport& source) {
  auto segment = target.allocate(kBlocks * kBlockBytes);
  if (!segment) return segment.status();
  const std::span<std::byte> landing = (*segment)->memory().first(kBlocks * kBlockBytes);
  const auto outcome = std::make_shared<Outcome>();
  target.set_message_handler([outcome](std::string_view message) {
    const std::lock_guard lock(outcome->mutex);
    if (message == "self-test") ++outcome->messages;
    outcome->changed.notify_all();
  });
  auto channel = source.connect(target.address(), "localhost");
  if (!channel) return channel.status();
  auto remote = (*channel)->attach((*segment)->descriptor());
  if (!remote) return remote.status();

  std::vector<std::byte> data(landing.size());
  SelfTestReport report;
  for (int round = 0; round < kRounds; ++round) {
    std::fill(data.begin(), data.end(), std::byte(round + 1));
    const TimePoint begin = SystemClock::get().now();
    TANDEM_RETURN_IF_ERROR(run_round(**channel, **remote, data, outcome));
    TANDEM_RETURN_IF_ERROR(await(target, source, *outcome, round + 1));
    const Duration elapsed = SystemClock::get().now() - begin;
    report.put_gb_per_s = std::max(report.put_gb_per_s, gb_per_s(data.size(), elapsed));
    if (!std::equal(data.begin(), data.end(), landing.begin())) {
      return Status(ErrorCode::kDataLoss, "self-test: other bytes arrived than were sent");
    }
  }
  report.copy_gb_per_s = copy_speed(landing, data);
  target.set_message_handler(nullptr);
  return report;
}

}  // namespace tandem::transfer

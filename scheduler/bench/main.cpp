// tandem-scheduler-bench: what a decision costs with many workers and a long queue, and what the
// prefix index holds after a million long prompts. Prints one line per figure.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "common/random.h"
#include "scheduler/prefix_index.h"
#include "scheduler/scheduler.h"

namespace tandem::scheduler {
namespace {

constexpr uint64_t kSeed = 1;
constexpr int kDecisions = 20'000;
constexpr double kLimitP99Us = 20;

// Of this thread's processor: a shared machine takes it away for milliseconds at a time.
double cpu_micros() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

void print(const char* what, std::vector<double>& micros) {
  std::ranges::sort(micros);
  fmt::print("{:<44} p50 {:6.2f} us  p99 {:6.2f} us  (limit of p99: {} us)\n", what,
             micros[micros.size() / 2], micros[micros.size() * 99 / 100], kLimitP99Us);
}

// One prompt ends somewhere, another request arrives: the decision that this makes possible.
void decisions(const char* policy, int workers, int queued, bool coupled) {
  Config config;
  config.scheduler.policy = policy;
  config.scheduler.profile = "llama-3-8b-h100";
  config.scheduler.queue_max = 2 * queued + 10;
  config.model.context = 131072;
  const auto scheduler = make_scheduler(config);
  for (int i = 0; i < workers; ++i) {
    const Role role = coupled && i % 4 == 0 ? Role::kCoupled
                      : i % 2 == 0          ? Role::kPrefill
                                            : Role::kDecode;
    scheduler->worker_joined(i, {.role = role,
                                 .slots = 256,
                                 .slots_free = 256,
                                 .kv_tokens_capacity = 400'000,
                                 .prefill_us_per_token = 20.8});
  }
  uint64_t draws = 0;
  const auto pick = [&](uint64_t below) {
    return static_cast<int>(counter_random(kSeed, ++draws) % below);
  };
  ManualClock clock;
  Ticket tickets = 0;
  std::vector<Ticket> running;
  const auto take = [&](const std::vector<Decision>& made) {
    for (const Decision& decision : made)
      if (decision.path != Path::kRefuse) running.push_back(decision.ticket);
    return static_cast<int>(made.size());
  };
  const auto submit = [&] {
    Request request{.prompt_tokens = 3000 + pick(6000), .max_tokens = 100 + pick(400)};
    request.tenant = std::to_string(pick(50));
    for (int i = 0; i < 20; ++i)
      request.blocks.push_back(static_cast<uint64_t>(pick(1000) * 1000 + i));
    request.session = static_cast<uint64_t>(1 + pick(5000));
    scheduler->submit(++tickets, request, clock.now());
  };
  while (scheduler->queued() < queued) {
    submit();
    take(scheduler->poll(clock.now()));
  }
  std::vector<double> micros;
  for (int i = 0; i < kDecisions && !running.empty(); ++i) {
    clock.advance(std::chrono::milliseconds(1));
    const auto at = static_cast<size_t>(pick(running.size()));
    const Ticket ended = running[at];
    running[at] = running.back();
    running.pop_back();
    const double begin = cpu_micros();
    submit();
    scheduler->finished(ended, 100);
    const int made = take(scheduler->poll(clock.now()));
    // Of a poll that decides several, each has its part; one more look finds the next head waiting.
    micros.push_back((cpu_micros() - begin) / (made + 1));
  }
  print(fmt::format("{}, {} workers{}, {} queued", policy, workers,
                    coupled ? " (some coupled)" : "", scheduler->queued())
            .c_str(),
        micros);
}

void index_memory() {
  constexpr int64_t kLimit = 64 << 20;
  constexpr int kPrompts = 1'000'000, kBlocks = 32;  // 8,192 tokens each
  PrefixIndex index(kLimit);
  const double begin = cpu_micros();
  uint64_t draws = 0;
  for (int prompt = 0; prompt < kPrompts; ++prompt)
    for (int block = 0; block < kBlocks; ++block)
      index.store(counter_random(kSeed, ++draws), prompt % 1000);
  const double seconds = (cpu_micros() - begin) / 1e6;
  fmt::print(
      "prefix index after {} prompts of {} blocks: {} MiB of {} MiB, {} blocks, {:.0f} ns a "
      "block\n",
      kPrompts, kBlocks, index.bytes() >> 20, kLimit >> 20, index.size(),
      seconds * 1e9 / kPrompts / kBlocks);
}

}  // namespace
}  // namespace tandem::scheduler

int main() {
  using namespace tandem::scheduler;
  for (const char* policy : {"slack", "least_backlog"}) decisions(policy, 1000, 10'000, false);
  decisions("slack", 1000, 10'000, true);
  decisions("slack", 8, 100, false);
  index_memory();
  return 0;
}

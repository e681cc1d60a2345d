// No write after free, between two processes over shared memory: a sender is stopped in the middle
// of a put, its transfer fails, its room goes to another, and then it wakes and finishes what it
// was writing. No byte of the newcomer may change. Repeated at random moments of the put.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "common/log.h"
#include "tests/contract/transfer/stream_fixture.h"
#include "tests/contract/transfer/transport_suite.h"

namespace tandem::transfer {
namespace {

constexpr int kRounds = 12;
constexpr int kTokens = 1000;

KvLayout wide_layout() {
  KvLayout layout;
  layout.element_type = "f16";
  layout.layers.assign(4, {16384, 16384, 0});
  return layout;
}

// One segment: whoever comes next gets the room of whoever failed, or its replacement.
Config one_segment_config() {
  Config config;
  config.transfer.landing_bytes = config.transfer.segment_bytes = 4 << 20;
  config.transfer.progress_deadline = Milliseconds(700);
  config.link.heartbeat = Milliseconds(100);
  config.link.silence_max = Milliseconds(500);
  return config;
}

// What the parent asks of the sending process.
struct Job {
  std::array<char, 64> address{};
  uint64_t epoch = 0;
  uint64_t transfer = 0;
};

// The sending process: one whole transfer per job, then a byte.
[[noreturn]] void send_for_ever(int jobs, int answers) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const KvLayout layout = wide_layout();
  auto transport = make_test_transport("ucx");
  if (!transport) ::_exit(0);
  const Config config = one_segment_config();
  PrefillSide prefill(config, layout, std::move(transport));
  FakeCache source(layout, kTokens, true);
  Job job;
  while (::read(jobs, &job, sizeof job) == sizeof job) {
    OpenRequest open;
    open.transfer = {job.transfer};
    open.decode_listen = job.address.data();
    open.decode_epoch = {job.epoch};
    open.token = "token of the old";
    open.tokens = kTokens;
    std::shared_ptr<Outcome> out;
    const auto stream = prefill.open(open, out);
    for (int layer = 0; layer < 4; ++layer) stream->push(source.layer_rows(layer, 0, kTokens));
    stream->seal(test_seal(kTokens));
    while (!out->is_done() && !out->failure()) prefill.sender().progress();
    const char answer = out->is_done() ? 'd' : 'f';
    if (::write(answers, &answer, 1) != 1) break;
  }
  ::_exit(0);
}

struct Child {
  Child() {
    REQUIRE(::pipe(jobs) == 0);
    REQUIRE(::pipe(answers) == 0);
    pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      ::close(jobs[1]);
      ::close(answers[0]);
      send_for_ever(jobs[0], answers[1]);
    }
    ::close(jobs[0]);
    ::close(answers[1]);
  }
  ~Child() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    ::close(jobs[1]);
    ::close(answers[0]);
  }
  void ask(const Job& job) const { REQUIRE(::write(jobs[1], &job, sizeof job) == sizeof job); }
  char answer() const {
    char answer = 0;
    REQUIRE(::read(answers[0], &answer, 1) == 1);
    return answer;
  }

  int jobs[2];
  int answers[2];
  pid_t pid = -1;
};

std::vector<std::byte> copy_of(const std::byte* memory, size_t bytes) {
  return std::vector<std::byte>(memory, memory + bytes);
}

}  // namespace

TEST_CASE("a stopped sender that wakes changes no byte of who came after it") {
  const Child child;  // Before any thread of this process
  auto transport = make_test_transport("ucx");
  if (!transport) return;
  const KvLayout layout = wide_layout();
  const Config config = one_segment_config();
  DecodeSide decode(config, layout, std::move(transport));
  PrefillSide newcomer(config, layout, make_test_transport("ucx"));
  const auto pull_until = [&](const std::function<bool()>& condition) {
    const TimePoint deadline = SystemClock::get().now() + kPatience;
    while (!condition() && SystemClock::get().now() < deadline) {
      decode.pull();
      std::this_thread::yield();
    }
    return condition();
  };
  Job job;
  decode.address().copy(job.address.data(), job.address.size() - 1);
  job.epoch = decode.epoch.value;
  int late_writes = 0;
  uint64_t id = 0;
  for (int round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    job.transfer = ++id;
    const auto old_in = decode.expect({job.transfer}, "token of the old", kTokens);
    child.ask(job);
    REQUIRE(pull_until([&] { return decode.receiver().progress_of({job.transfer}).bytes > 0; }));
    const TimePoint stop_at =
        SystemClock::get().now() + std::chrono::microseconds(randomness()() % 8000);
    const std::byte* old_segment = nullptr;
    while (SystemClock::get().now() < stop_at && !old_in->is_done()) decode.pull();
    ::kill(child.pid, SIGSTOP);
    int status = 0;
    ::waitpid(child.pid, &status, WUNTRACED);
    old_segment = decode.lowest_landing({job.transfer});
    if (old_in->is_done()) {  // Too late to stop it
      ::kill(child.pid, SIGCONT);
      CHECK(child.answer() == 'd');
      continue;
    }
    REQUIRE(pull_until(
        [&] { return old_in->failure() && decode.receiver().landing_bytes_used() == 0; }));

    // The room goes to another, whose rows stay in landing memory while the old sender wakes.
    OpenRequest open;
    open.transfer = {++id};
    open.decode_listen = decode.address();
    open.decode_epoch = decode.epoch;
    open.token = "token of the new";
    open.tokens = kTokens;
    FakeCache source(layout, kTokens, true);
    const auto in = decode.expect({id}, open.token, kTokens);
    decode.hold_units = true;
    std::shared_ptr<Outcome> out;
    const auto stream = newcomer.open(open, out);
    for (int layer = 0; layer < 4; ++layer) stream->push(source.layer_rows(layer, 0, kTokens));
    stream->seal(test_seal(kTokens));
    REQUIRE(pull_until([&] { return decode.held_bytes() > size_t(3 << 20); }));
    const auto before = copy_of(old_segment, size_t(config.transfer.segment_bytes));

    ::kill(child.pid, SIGCONT);
    CHECK(child.answer() == 'f');
    late_writes += before != copy_of(old_segment, before.size());
    CHECK(decode.held_equal(source));
    decode.release_held();
    REQUIRE(pull_until([&] { return out->is_done() && in->is_done(); }));
    CHECK(decode.cache({id}).holds(source));
    decode.forget({id});
    decode.forget({job.transfer});
  }
  MESSAGE("sender woke and wrote into retired memory in " << late_writes << " of " << kRounds
                                                          << " rounds");
  // The old sender said that it is quiet when it had a session again: nothing stays aside but the
  // last round's.
  CHECK(decode.receiver().totals().segments_retired > 0);
}

}  // namespace tandem::transfer

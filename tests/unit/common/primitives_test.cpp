// Proves the small parts of common/: queue, checksum, units, randomness, descriptors and log
// values.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "common/bounded_queue.h"
#include "common/crc32c.h"
#include "common/log.h"
#include "common/random.h"
#include "common/unique_fd.h"
#include "common/units.h"

using namespace tandem;
using namespace std::chrono_literals;

namespace {
std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
}  // namespace

TEST_CASE("a full queue refuses and leaves the item alone") {
  BoundedQueue<std::string> queue(2);
  CHECK(queue.try_push("a"));
  CHECK(queue.try_push("b"));
  std::string third = "c";
  CHECK_FALSE(queue.try_push(std::move(third)));
  CHECK(third == "c");
  CHECK(queue.try_pop() == "a");
  CHECK(queue.size() == 1);
}

TEST_CASE("a closed queue gives what it holds, then nothing, without waiting") {
  BoundedQueue<int> queue(4);
  CHECK(queue.try_push(7));
  queue.close();
  queue.close();
  CHECK_FALSE(queue.try_push(8));
  CHECK(queue.pop(TimePoint::max()) == 7);
  CHECK_FALSE(queue.pop(SystemClock::get().now() + 1h).has_value());
}

TEST_CASE("a pop without an item ends at its deadline") {
  BoundedQueue<int> queue(1);
  const TimePoint deadline = SystemClock::get().now() + 5ms;
  CHECK_FALSE(queue.pop(deadline).has_value());
  CHECK(SystemClock::get().now() >= deadline);
}

TEST_CASE("several producers and consumers lose and double nothing") {
  constexpr int kEach = 5000;
  BoundedQueue<int> queue(16);
  std::atomic<int64_t> sum{0};
  std::atomic<int> taken{0};
  std::vector<std::thread> producers, consumers;
  for (int p = 0; p < 2; ++p) {
    producers.emplace_back([&] {
      for (int i = 1; i <= kEach; ++i) {
        while (!queue.try_push(i)) std::this_thread::yield();
      }
    });
    consumers.emplace_back([&] {
      while (auto item = queue.pop(SystemClock::get().now() + 60s)) {
        sum += *item;
        ++taken;
      }
    });
  }
  for (auto& thread : producers) thread.join();
  queue.close();
  for (auto& thread : consumers) thread.join();
  CHECK(taken == 2 * kEach);
  CHECK(sum == int64_t{kEach} * (kEach + 1));
}

TEST_CASE("the checksum is CRC-32C, and continues over pieces") {
  CHECK(crc32c(bytes_of("123456789")) == 0xe3069283u);            // The published check value
  CHECK(crc32c(bytes_of(std::string(32, '\0'))) == 0x8a9136aau);  // RFC 3720, appendix B.4
  CHECK(crc32c({}) == 0);
  CHECK(crc32c(bytes_of("456789"), crc32c(bytes_of("123"))) == 0xe3069283u);
}

TEST_CASE("sizes are read with their units, and only whole") {
  CHECK(parse_bytes("64MiB") == 64ll << 20);
  CHECK(parse_bytes("2GiB") == 2ll << 30);
  CHECK(parse_bytes("1.5KiB") == 1536);
  CHECK(parse_bytes("10MB") == 10'000'000);
  CHECK(parse_bytes("4096") == 4096);
  CHECK(parse_bytes("9007199254740993") == 9007199254740993);
  for (const char* bad : {"", "MiB", "-1", "-1MiB", "1.3B", "64 MiB", "64mib", "1e3", "1..2GB",
                          "9999999999GiB", "nan", "inf"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_bytes(bad).has_value());
  }
}

TEST_CASE("formatted sizes read back to the same number") {
  CHECK(format_bytes(64ll << 20) == "64MiB");
  CHECK(format_bytes(1500) == "1500");
  CHECK(format_bytes(0) == "0");
  for (int64_t bytes : {0ll, 1ll, 1024ll, 1536ll, 3ll << 30, (1ll << 41) + 1}) {
    CHECK(parse_bytes(format_bytes(bytes)) == bytes);
  }
}

TEST_CASE("durations need a unit") {
  CHECK(parse_duration("500ms") == 500ms);
  CHECK(parse_duration("1.5s") == 1500ms);
  CHECK(parse_duration("20us") == 20us);
  CHECK(parse_duration("2m") == 2min);
  CHECK(parse_duration("1h") == 1h);
  for (const char* bad : {"", "5", "-5ms", "5 ms", "ms", "1.0000001us"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_duration(bad).has_value());
  }
}

TEST_CASE("counter draws are a pure function of seed and counter") {
  CHECK(counter_random(1, 2) == counter_random(1, 2));
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (uint64_t counter = 0; counter < 100; ++counter) seen.insert(counter_random(seed, counter));
  }
  CHECK(seen.size() == 10000);
}

TEST_CASE("counter draws are evenly spread") {
  double sum = 0;
  int below_tenth = 0;
  for (uint64_t i = 0; i < 100000; ++i) {
    const double draw = counter_uniform(42, i);
    REQUIRE(draw >= 0);
    REQUIRE(draw < 1);
    sum += draw;
    below_tenth += draw < 0.1 ? 1 : 0;
  }
  CHECK(sum / 100000 == doctest::Approx(0.5).epsilon(0.01));
  CHECK(below_tenth == doctest::Approx(10000).epsilon(0.05));
}

TEST_CASE("random bytes differ from call to call") {
  CHECK(random_bytes(16).size() == 16);
  CHECK(random_bytes(16) != random_bytes(16));
  CHECK(random_u64() != random_u64());
}

TEST_CASE("a descriptor is closed once, by its last owner") {
  int raw = -1;
  {
    UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    raw = first.get();
    REQUIRE(raw >= 0);
    UniqueFd second(std::move(first));
    CHECK_FALSE(first);  // NOLINT(bugprone-use-after-move): that is the claim
    CHECK(::fcntl(raw, F_GETFD) >= 0);
    first = std::move(second);
    CHECK(first.get() == raw);
  }
  CHECK(::fcntl(raw, F_GETFD) == -1);
}

TEST_CASE("log values are quoted only where they must be") {
  CHECK(quoted("plain") == "plain");
  CHECK(quoted("") == "\"\"");
  CHECK(quoted("two words") == "\"two words\"");
  CHECK(quoted("say \"hi\"") == "\"say \\\"hi\\\"\"");
}

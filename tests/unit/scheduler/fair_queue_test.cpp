// Proves the order of waiting requests: fair between tenants, by slack within one, nobody starved,
// and nothing lost in a random history.
#include <doctest/doctest.h>

#include <map>
#include <random>

#include "common/random.h"
#include "scheduler/fair_queue.h"

namespace tandem::scheduler {
namespace {

using namespace std::chrono_literals;

struct Bench {
  FairQueue queue;
  ManualClock clock;
  uint64_t ids = 0;

  explicit Bench(std::unordered_map<std::string, double> weights = {})
      : queue(10s, 16, std::move(weights)) {}
  uint64_t push(const std::string& tenant, double work, Duration slack = 1h, int priority = 0) {
    queue.push({.id = ++ids,
                .tenant = tenant,
                .priority = priority,
                .arrived = clock.now(),
                .latest_start = clock.now() + slack,
                .work = work});
    return ids;
  }
  uint64_t next() {
    const uint64_t id = queue.head(clock.now());
    queue.serve(id);
    return id;
  }
};

TEST_CASE("equals go in order of arrival, priority before it, resumed streams before all") {
  Bench bench;
  const uint64_t a = bench.push("t", 1), b = bench.push("t", 1);
  const uint64_t urgent = bench.push("t", 1, 1h, -1);
  const uint64_t resumed = bench.push("u", 1, 1h, kResumedPriority);
  for (const uint64_t id : {resumed, urgent, a, b}) CHECK(bench.next() == id);
  CHECK(bench.queue.head(bench.clock.now()) == 0);
}

TEST_CASE("who must start soonest goes first, and among the late the shortest") {
  Bench bench;
  const uint64_t relaxed = bench.push("t", 1, 3s);
  const uint64_t tight = bench.push("t", 50, 1s);
  const uint64_t tightest = bench.push("t", 90, 500ms);
  CHECK(bench.queue.head(bench.clock.now()) == tightest);
  bench.clock.advance(1500ms);
  CHECK(bench.next() == relaxed);  // The only one that can still be in time
  CHECK(bench.queue.late(tight));
  CHECK(bench.next() == tight);  // Shorter than the other late one
  CHECK(bench.next() == tightest);
}

TEST_CASE("what has waited too long gets every fourth turn") {
  Bench bench;
  const uint64_t old = bench.push("t", 1000, 1ms);
  bench.clock.advance(11s);
  int turns = 0;
  do bench.push("t", 1);
  while (++turns < 20 && bench.next() != old);
  CHECK(turns == 4);
}

TEST_CASE("a flood of one tenant delays another by one turn") {
  Bench bench;
  for (int i = 0; i < 1000; ++i) bench.push("flood", 10);
  for (int i = 0; i < 50; ++i) bench.next();
  const uint64_t lone = bench.push("quiet", 10);
  CHECK((bench.next() == lone || bench.next() == lone));
}

TEST_CASE("tenants get work by their weight, whatever the size of their requests") {
  Bench bench({{"big", 3.0}});
  std::map<uint64_t, std::pair<char, double>> of;
  for (int i = 0; i < 4000; ++i) {
    of[bench.push("big", 20)] = {'b', 20};
    of[bench.push("small", 5)] = {'s', 5};
  }
  std::map<char, double> work;
  for (int i = 0; i < 1000; ++i) {
    const auto [who, amount] = of.at(bench.next());
    work[who] += amount;
  }
  CHECK(work['b'] / work['s'] == doctest::Approx(3).epsilon(0.03));
}

TEST_CASE("a tenant that was idle has no credit from the time before") {
  Bench bench;
  bench.push("late", 1);
  bench.next();
  for (int i = 0; i < 200; ++i) bench.push("busy", 1);
  for (int i = 0; i < 100; ++i) bench.next();
  for (int i = 0; i < 50; ++i) bench.push("late", 1);
  int late = 0;
  for (int i = 0; i < 40; ++i) late += bench.next() > 201;
  CHECK(late >= 19);
  CHECK(late <= 21);
}

TEST_CASE("room in a full queue is taken from who has most waiting") {
  Bench bench;
  for (int i = 0; i < 5; ++i) bench.push("flood", 1);
  CHECK(bench.queue.newest_of_longest("quiet") == 5);
  CHECK(bench.queue.newest_of_longest("flood") == 0);
  for (int i = 0; i < 4; ++i) bench.push("quiet", 1);
  CHECK(bench.queue.newest_of_longest("quiet") == 0);
}

TEST_CASE("a random history loses nothing and forgets idle tenants") {
  const uint64_t seed = seed_from_environment();
  MESSAGE("TANDEM_SEED=" << seed);
  std::mt19937_64 random(seed);
  Bench bench;
  std::set<uint64_t> waiting;
  for (int i = 0; i < 20000; ++i) {
    const auto dice = random() % 8;
    if (dice < 4) {
      waiting.insert(bench.push(std::to_string(random() % 300), static_cast<double>(random() % 50),
                                Duration(1ms) * static_cast<int>(random() % 4000),
                                static_cast<int>(random() % 3)));
    } else if (dice < 6) {
      const uint64_t id = bench.next();
      CHECK(waiting.erase(id) == (id != 0));
    } else if (dice == 6 && !waiting.empty()) {
      bench.queue.erase(*waiting.begin());
      waiting.erase(waiting.begin());
    } else {
      bench.clock.advance(Duration(1ms) * (static_cast<int>(random() % 400) - 100));
    }
    REQUIRE(bench.queue.size() == static_cast<int>(waiting.size()));
  }
  while (!waiting.empty()) REQUIRE(waiting.erase(bench.next()) == 1);
  CHECK(bench.queue.tenants() <= 17);
}

}  // namespace
}  // namespace tandem::scheduler

// Proves that the index finds the longest prefix of every worker, forgets what it is told to, and
// never outgrows its limit; and that predicted output lengths follow the tenant.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

#include "common/random.h"
#include "scheduler/output_predictor.h"
#include "scheduler/prefix_index.h"

namespace tandem::scheduler {
namespace {

std::map<int, int> match(PrefixIndex& index, const std::vector<uint64_t>& blocks) {
  std::vector<PrefixMatch> found;
  index.match(blocks, found);
  std::map<int, int> out;
  for (const PrefixMatch& m : found) out[m.worker] = m.blocks;
  return out;
}

TEST_CASE("the longest prefix is found per worker") {
  PrefixIndex index(1 << 20);
  for (const uint64_t hash : {1, 2, 3, 4}) index.store(hash, 7);
  for (const uint64_t hash : {1, 2}) index.store(hash, 9);
  index.store(4, 9);  // Not reachable without 3
  index.store(2, 11);
  CHECK(match(index, {1, 2, 3, 4, 5}) == std::map<int, int>{{7, 4}, {9, 2}});
  index.remove(2, 7);
  CHECK(match(index, {1, 2, 3, 4}) == std::map<int, int>{{7, 1}, {9, 2}});
  CHECK(match(index, {99, 1}).empty());
  CHECK(match(index, {}).empty());
}

TEST_CASE("a worker that left is forgotten, its successor at the index starts empty") {
  PrefixIndex index(1 << 20);
  index.store(1, 3);
  index.store(1, 4);
  index.forget_worker(3);
  CHECK(match(index, {1}) == std::map<int, int>{{4, 1}});
  CHECK(index.latest(1) == 4);
  index.store(1, 3);
  CHECK(match(index, {1}) == std::map<int, int>{{3, 1}, {4, 1}});
}

TEST_CASE("of many workers the latest are remembered") {
  PrefixIndex index(1 << 20);
  for (int worker = 0; worker < 20; ++worker) index.store(5, worker);
  CHECK(match(index, {5}).size() == PrefixIndex::kWorkersPerBlock);
  CHECK(index.latest(5) == 19);
  index.store(5, -1);
  index.store(5, 1 << 20);
  CHECK(index.latest(5) == 19);
}

TEST_CASE("a small index holds the latest blocks of a random history and never grows") {
  const uint64_t seed = seed_from_environment();
  MESSAGE("TANDEM_SEED=" << seed);
  std::mt19937_64 random(seed);
  PrefixIndex index(140 << 10);
  const int64_t bytes = index.bytes();
  CHECK(bytes <= 140 << 10);
  std::map<uint64_t, std::set<int>> model;  // Never evicts: what the index knows must be in it
  for (int i = 0; i < 50000; ++i) {
    const uint64_t hash = random() % 2000;
    const int worker = static_cast<int>(random() % 5);
    if (random() % 4 != 0) {
      index.store(hash, worker);
      model[hash].insert(worker);
      REQUIRE(index.latest(hash) == worker);
    } else {
      index.remove(hash, worker);
      model[hash].erase(worker);
    }
    const uint64_t other = random() % 2000;
    for (const auto& [found, blocks] : match(index, {other})) REQUIRE(model[other].contains(found));
  }
  CHECK(index.bytes() == bytes);
  CHECK(index.size() > 50);
}

TEST_CASE("a prefix in use outlives blocks that are stored once") {
  PrefixIndex index(140 << 10);
  for (const uint64_t hash : {1, 2, 3}) index.store(hash, 0);
  for (uint64_t i = 0; i < 5000; ++i) {
    index.store(1000 + i, 1);
    if (i % 20 == 0) CHECK(match(index, {1, 2, 3}) == std::map<int, int>{{0, 3}});
  }
}

TEST_CASE("the predicted output is a quantile of the tenant's, never above what may be generated") {
  OutputPredictor predictor(0.7, 3);
  CHECK(predictor.predict("a", 4096) == 4096);
  for (int i = 1; i <= 100; ++i) predictor.learn("a", i);
  CHECK(predictor.predict("a", 4096) == doctest::Approx(70).epsilon(0.03));
  CHECK(predictor.predict("a", 16) == 16);
  CHECK(predictor.predict("stranger", 4096) == doctest::Approx(70).epsilon(0.03));
  for (int i = 0; i < 20; ++i) predictor.learn("b", 1000);
  CHECK(predictor.predict("b", 4096) == 1000);
  predictor.learn("b", -1);
  for (int i = 0; i < 1000; ++i) predictor.learn("t" + std::to_string(i), 5);
  CHECK(predictor.tenants() == 3);
  CHECK(predictor.predict("a", 0) == 1);
}

}  // namespace
}  // namespace tandem::scheduler

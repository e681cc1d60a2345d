// SegmentPool over transports in this process: room comes back, retired memory is never granted
// again before its owner is settled, and what is kept aside is bounded.
#include "transfer/stream/segment_pool.h"

#include <doctest/doctest.h>

#include <set>

#include "transfer/local/local_transport.h"
#include "transfer/tcp/tcp_transport.h"

namespace tandem::transfer {
namespace {

constexpr int64_t kSegment = 1 << 16;

SegmentPool make_pool(std::vector<Transport*> transports, int segments) {
  auto pool = SegmentPool::create(std::move(transports), segments * kSegment, kSegment);
  REQUIRE_MESSAGE(pool.ok(), pool.status().to_string());
  return *std::move(pool);
}

}  // namespace

TEST_CASE("every segment is granted to one transfer at a time") {
  const auto local = make_local_transport();
  SegmentPool pool = make_pool({local.get()}, 4);
  std::set<const std::byte*> seen;
  std::vector<SegmentPool::Grant> grants;
  while (pool.has_free()) {
    auto grant = pool.acquire(*local);
    REQUIRE(grant.ok());
    CHECK(seen.insert(grant->memory.data()).second);
    CHECK(grant->memory.size() == size_t(kSegment));
    grants.push_back(*grant);
  }
  CHECK(grants.size() == 4);
  CHECK(pool.bytes_used() == 4 * kSegment);
  for (const auto& grant : grants) pool.release(grant);
  CHECK(pool.bytes_used() == 0);
}

TEST_CASE("a retired segment is replaced, and comes back when its owner is quiet") {
  const auto local = make_local_transport();
  SegmentPool pool = make_pool({local.get()}, 2);
  const auto grant = pool.acquire(*local);
  REQUIRE(grant.ok());
  pool.retire(*grant, ProcessIdentity::self());
  CHECK(pool.retired() == 1);
  std::vector<SegmentPool::Grant> grants;
  while (pool.has_free()) grants.push_back(*pool.acquire(*local));
  CHECK(grants.size() == 2);  // Capacity stays
  for (const auto& other : grants) CHECK(other.memory.data() != grant->memory.data());
  pool.settle_dead();  // The owner lives
  CHECK(pool.retired() == 1);
  pool.settle(grant->key + 1);
  CHECK(pool.retired() == 1);
  pool.settle(grant->key);
  CHECK(pool.retired() == 0);
  for (const auto& other : grants) pool.release(other);
}

TEST_CASE("a dead owner's segment is used again at once") {
  const auto local = make_local_transport();
  SegmentPool pool = make_pool({local.get()}, 1);
  const auto grant = pool.acquire(*local);
  ProcessIdentity dead = ProcessIdentity::self();
  dead.started += 1;
  pool.retire(*grant, dead);
  CHECK(pool.retired() == 0);
  CHECK(pool.has_free());
}

TEST_CASE("no more than the landing memory is kept aside") {
  const auto local = make_local_transport();
  SegmentPool pool = make_pool({local.get()}, 2);
  std::vector<uint64_t> keys;
  while (pool.has_free()) {
    const auto grant = pool.acquire(*local);
    REQUIRE(grant.ok());
    keys.push_back(grant->key);
    pool.retire(*grant, ProcessIdentity::self());
    REQUIRE(keys.size() < 10);
  }
  CHECK(keys.size() == 4);  // Two and their two replacements
  pool.settle(keys[0]);
  CHECK(pool.has_free());
}

TEST_CASE("what only sockets can write to is used again at once, under a new key") {
  const auto tcp = make_tcp_transport(Config{});
  REQUIRE(tcp.ok());
  const auto local = make_local_transport();
  SegmentPool pool = make_pool({local.get(), tcp->get()}, 1);
  const auto first = pool.acquire(**tcp);
  REQUIRE(first.ok());
  pool.retire(*first, ProcessIdentity::self());
  CHECK(pool.retired() == 0);
  const auto second = pool.acquire(**tcp);
  REQUIRE(second.ok());
  CHECK(second->memory.data() == first->memory.data());
  CHECK(second->descriptor != first->descriptor);
  CHECK(second->key != first->key);
  pool.release(*second);
}

}  // namespace tandem::transfer

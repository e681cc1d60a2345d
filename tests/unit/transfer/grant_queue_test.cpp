// GrantQueue: first come first served, bounded, and nobody waits beyond the deadline.
#include "transfer/stream/grant_queue.h"

#include <doctest/doctest.h>

namespace tandem::transfer {

TEST_CASE("transfers are granted in the order in which they came") {
  GrantQueue queue(3);
  const TimePoint late{std::chrono::seconds(9)};
  CHECK(!queue.front());
  CHECK(queue.push({1}, late));
  CHECK(queue.push({2}, late));
  CHECK(queue.push({3}, late));
  CHECK(!queue.push({4}, late));
  queue.remove({1});
  CHECK(queue.front() == TransferId{2});
  queue.remove({77});
  CHECK(queue.size() == 2);
}

TEST_CASE("those whose deadline has passed are taken out") {
  GrantQueue queue(8);
  queue.push({1}, TimePoint{std::chrono::seconds(3)});
  queue.push({2}, TimePoint{std::chrono::seconds(1)});
  queue.push({3}, TimePoint{std::chrono::seconds(2)});
  CHECK(queue.expire(TimePoint{}).empty());
  CHECK(queue.expire(TimePoint{std::chrono::seconds(2)}) == std::vector<TransferId>{{2}, {3}});
  CHECK(queue.front() == TransferId{1});
}

}  // namespace tandem::transfer

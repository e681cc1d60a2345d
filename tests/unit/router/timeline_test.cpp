// Proves that the ring of timelines forgets the oldest, keeps the newest of an id, and ignores
// notes on what is gone.
#include "router/timeline.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace tandem::router {
namespace {

using nlohmann::json;

TEST_CASE("the oldest record makes room for a new one") {
  ManualClock clock;
  Timeline timeline(2, clock);
  const uint64_t first = timeline.begin("a", "/x", 1);
  timeline.attempt_queued(first, TransferId{1}, 10, false);
  timeline.begin("b", "/x", 2);
  timeline.begin("c", "/x", 3);
  CHECK(timeline.size() == 2);
  CHECK(!timeline.json("a"));
  CHECK(timeline.json("b"));
  timeline.note(first, "tokenised");
  timeline.end(first, "ok", 200);
  timeline.worker_event({.transfer = TransferId{1}, .name = "joined", .at_us = 5});
  CHECK(!timeline.json("a"));
}

TEST_CASE("an id that is used again shows its newest request") {
  ManualClock clock;
  Timeline timeline(2, clock);
  timeline.begin("a", "/x", 1);
  const uint64_t second = timeline.begin("a", "/x", 2);
  timeline.end(second, "ok", 200);
  CHECK(json::parse(*timeline.json("a"))["outcome"] == "ok");
  timeline.begin("b", "/x", 3);  // Drops the first "a", not the second
  CHECK(timeline.json("a"));
}

TEST_CASE("workers' events find their attempt and unknown names are ignored") {
  ManualClock clock;
  Timeline timeline(8, clock);
  const uint64_t record = timeline.begin("a", "/x", 1);
  timeline.attempt_queued(record, TransferId{1}, 10, false);
  timeline.attempt_queued(record, TransferId{2}, 12, true);
  timeline.worker_event({.transfer = TransferId{1}, .name = "kv_first", .at_us = 50});
  timeline.worker_event({.transfer = TransferId{1},
                         .name = "kv_last",
                         .at_us = 90,
                         .bytes = 1000,
                         .landed = {{60, 100}, {90, 1000}}});
  timeline.worker_event({.transfer = TransferId{2}, .name = "joined", .at_us = 99});
  timeline.worker_event({.transfer = TransferId{2}, .name = "nonsense", .at_us = 99});
  const json whole = json::parse(*timeline.json("a"));
  CHECK(whole["kv_bytes"] == 1000);
  CHECK(whole["kv_landed"].size() == 2);
  CHECK(whole["times_us"]["kv_first"] == 50);
  CHECK(whole["times_us"]["kv_last"] == 90);
  CHECK(whole["attempts"][1]["times_us"]["joined"] == 99);
  CHECK(whole["attempts"][1]["resumed"] == true);
  CHECK(!whole["attempts"][1]["times_us"].contains("nonsense"));
}

TEST_CASE("a record keeps a bounded number of attempts") {
  ManualClock clock;
  Timeline timeline(8, clock);
  const uint64_t record = timeline.begin("a", "/x", 1);
  for (uint64_t i = 1; i <= 100; ++i) timeline.attempt_queued(record, TransferId{i}, 1, false);
  const json whole = json::parse(*timeline.json("a"));
  CHECK(whole["attempts"].size() == 64);
  CHECK(whole["attempts_left_out"] == 36);
}

}  // namespace
}  // namespace tandem::router

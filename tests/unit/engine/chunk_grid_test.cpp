// The grid covers every token once, depends on the lengths alone, and keeps to its chunk sizes: all
// short lengths, borders named one by one.
#include "engine/chunk_grid.h"

#include <doctest/doctest.h>

#include "common/status.h"

namespace tandem {
namespace {

using Chunks = std::vector<Chunk>;

TEST_CASE("a prompt is cut into whole chunks and a remainder of at least 64 tokens") {
  CHECK(chunk_grid(1, 0, 256, 63) == Chunks{{0, 1}});
  CHECK(chunk_grid(63, 0, 256, 63) == Chunks{{0, 63}});
  CHECK(chunk_grid(64, 0, 256, 63) == Chunks{{0, 64}});
  CHECK(chunk_grid(65, 0, 256, 63) == Chunks{{0, 65}});
  CHECK(chunk_grid(255, 0, 256, 63) == Chunks{{0, 255}});
  CHECK(chunk_grid(256, 0, 256, 63) == Chunks{{0, 256}});
  CHECK(chunk_grid(320, 0, 256, 63) == Chunks{{0, 256}, {256, 64}});
  CHECK(chunk_grid(512, 0, 256, 63) == Chunks{{0, 256}, {256, 256}});
  CHECK(chunk_grid(130, 0, 64, 63) == Chunks{{0, 64}, {64, 66}});
}

TEST_CASE("a remainder below 64 tokens joins the chunk before it") {
  CHECK(chunk_grid(257, 0, 256, 63) == Chunks{{0, 257}});
  CHECK(chunk_grid(319, 0, 256, 63) == Chunks{{0, 319}});
  CHECK(chunk_grid(575, 0, 256, 63) == Chunks{{0, 256}, {256, 319}});
}

TEST_CASE("emitted tokens are replayed in chunks that are exact") {
  CHECK(chunk_grid(64, 1, 256, 63) == Chunks{{0, 64}, {64, 1}});
  CHECK(chunk_grid(64, 63, 256, 63) == Chunks{{0, 64}, {64, 63}});
  CHECK(chunk_grid(64, 64, 256, 63) == Chunks{{0, 64}, {64, 63}, {127, 1}});
  CHECK(chunk_grid(10, 3, 256, 1) == Chunks{{0, 10}, {10, 1}, {11, 1}, {12, 1}});
}

TEST_CASE("every grid covers its tokens once, within its sizes") {
  for (const int chunk_tokens : {64, 100, 256}) {
    for (int prompt = 1; prompt <= 3 * chunk_tokens; ++prompt) {
      for (const int replay : {0, 1, 62, 63, 64, 200}) {
        int at = 0;
        for (const Chunk& chunk : chunk_grid(prompt, replay, chunk_tokens, 63)) {
          REQUIRE(chunk.first == at);
          REQUIRE(chunk.count >= 1);
          REQUIRE(chunk.count <= (at < prompt ? chunk_batch_max(chunk_tokens) : 63));
          REQUIRE((at >= prompt || chunk.count >= 64 || chunk.count == prompt));
          REQUIRE((at >= prompt || at + chunk.count <= prompt));
          at += chunk.count;
        }
        REQUIRE(at == prompt + replay);
      }
    }
  }
}

}  // namespace
}  // namespace tandem

#include "engine/chunk_grid.h"

#include <algorithm>

#include "common/status.h"

namespace tandem {

std::vector<Chunk> chunk_grid(int prompt, int replay, int chunk_tokens, int exact_batch_max) {
  TANDEM_CHECK(prompt >= 1 && replay >= 0, "a prompt has at least one token");
  TANDEM_CHECK(chunk_tokens >= kChunkTokensMin && exact_batch_max >= 1, "chunk sizes out of range");
  std::vector<Chunk> chunks;
  int at = 0;
  while (at < prompt) {
    const int left = prompt - at;
    // What would remain after this chunk is too short to stand alone: it joins.
    const int count = left - chunk_tokens < kChunkTokensMin ? left : chunk_tokens;
    chunks.push_back({at, count});
    at += count;
  }
  const int end = prompt + replay;
  while (at < end) {
    const int count = std::min(end - at, exact_batch_max);
    chunks.push_back({at, count});
    at += count;
  }
  return chunks;
}

}  // namespace tandem

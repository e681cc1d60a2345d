// The fixed grid on which prompts run. Results depend on batch size in two numeric regimes (fewer
// than 64 tokens, and 64 or more; docs/architecture.md), so the borders of chunks are a function of
// the prompt's length alone, the same for every worker; load and pacing only move when a chunk
// starts.
#pragma once

#include <vector>

namespace tandem {

inline constexpr int kChunkTokensMin = 64;

struct Chunk {
  int first = 0;
  int count = 0;
  bool operator==(const Chunk&) const = default;
};

// Cuts [0, prompt) into chunks of `chunk_tokens`; a remainder below kChunkTokensMin joins the chunk
// before it. Then cuts [prompt, prompt + replay), tokens that were emitted before a resume, into
// chunks of at most `exact_batch_max`. Requires: prompt >= 1, chunk_tokens >= kChunkTokensMin,
// exact_batch_max >= 1.
std::vector<Chunk> chunk_grid(int prompt, int replay, int chunk_tokens, int exact_batch_max);

// The longest chunk that chunk_grid() makes.
constexpr int chunk_batch_max(int chunk_tokens) { return chunk_tokens + kChunkTokensMin - 1; }

}  // namespace tandem

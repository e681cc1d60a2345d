#include "engine/sampling.h"

#include "common/random.h"

namespace tandem {

uint64_t choice_seed(uint64_t request_seed, int prompt_index, int choice_index) {
  // The first choice of the first prompt mixes too, so that no choice draws from the request's own
  // stream.
  const uint64_t position =
      (static_cast<uint64_t>(prompt_index) << 32) | static_cast<uint32_t>(choice_index);
  return counter_random(request_seed, position);
}

}  // namespace tandem

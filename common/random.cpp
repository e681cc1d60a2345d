#include "common/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

#include "common/status.h"

namespace tandem {
namespace {

// The finaliser of SplitMix64: every input bit changes every output bit with probability one half.
constexpr uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

void fill(void* out, size_t count) {
  auto* next = static_cast<char*>(out);
  while (count > 0) {
    const ssize_t got = getrandom(next, count, 0);
    TANDEM_CHECK(got > 0 || errno == EINTR, "getrandom failed");
    if (got > 0) {
      next += got;
      count -= static_cast<size_t>(got);
    }
  }
}

}  // namespace

uint64_t counter_random(uint64_t seed, uint64_t counter) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  // The seed is mixed on its own first, else seeds that differ by kGolden would be shifted copies.
  return mix(mix(seed + kGolden) + (counter + 1) * kGolden);
}

double counter_uniform(uint64_t seed, uint64_t counter) {
  return static_cast<double>(counter_random(seed, counter) >> 11) * 0x1.0p-53;
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  fill(bytes.data(), count);
  return bytes;
}

uint64_t random_u64() {
  uint64_t value = 0;
  fill(&value, sizeof value);
  return value;
}

uint64_t seed_from_environment() {
  const char* text = std::getenv("TANDEM_SEED");
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : random_u64();
}

}  // namespace tandem

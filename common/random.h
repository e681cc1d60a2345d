// Randomness: a counter-based generator for what must be reproducible, the kernel's for secrets and
// ids. Stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem {

// The `counter`-th draw of the stream `seed`: a pure function, so that whoever knows both continues
// a stream anywhere. 64 evenly distributed bits.
uint64_t counter_random(uint64_t seed, uint64_t counter);
// The same as a number in [0, 1) with 53 random bits.
double counter_uniform(uint64_t seed, uint64_t counter);

// From the kernel.
std::string random_bytes(size_t count);
uint64_t random_u64();

// TANDEM_SEED where it is set, else a fresh one. Tests print it.
uint64_t seed_from_environment();

}  // namespace tandem

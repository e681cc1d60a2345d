// PrefixHasher: names for the beginnings of prompts, so that the scheduler can tell which requests
// share one without ever seeing a token. Keyed with a secret of this process: a name says nothing
// about the text, and nobody can make two texts collide. Immutable; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/types.h"

namespace tandem::router {

class PrefixHasher {
 public:
  PrefixHasher();

  // Never 0. `domain` separates names of different things.
  uint64_t name(std::string_view domain, std::string_view text) const;
  // One name per full block, each over its own tokens and everything before them; `root` separates
  // tenants, who must not share.
  std::vector<uint64_t> blocks(uint64_t root, std::span<const TokenId> tokens,
                               size_t block_tokens) const;
  uint64_t fingerprint(uint64_t root, std::span<const TokenId> tokens) const;

 private:
  uint64_t hash(std::string_view bytes) const;

  std::string key_;
};

}  // namespace tandem::router

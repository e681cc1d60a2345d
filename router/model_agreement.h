// ModelAgreement: which model the cluster runs, when its workers do not agree. What the
// configuration fixes goes first; what it leaves open (a KV layout; weights of which this host has
// no file) is decided by the majority of the workers that can be reached, whichever came first.
//
// Owned by the worker pool, on the link thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "link/messages.h"

namespace tandem::router {

class ModelAgreement {
 public:
  struct Fixed {
    std::string engine;
    std::string model_digest;  // Empty: not known here
    int chunk_tokens = 0;
  };
  ModelAgreement(Fixed fixed, size_t workers) : fixed_(std::move(fixed)), votes_(workers) {}

  // What that worker is; replaces what it was. Not OK: it cannot be part of the cluster, and why.
  Status vote(size_t worker, const link::Hello& hello);
  // It cannot be reached any more, so it has no say.
  void withdraw(size_t worker) { votes_[worker].reset(); }
  bool agrees(const link::Hello& hello) const { return agreed_ && *agreed_ == Build(hello); }
  // Changes whenever another model takes over: answers that one began the next cannot continue.
  uint64_t generation() const { return generation_; }

 private:
  struct Build {
    explicit Build(const link::Hello& hello)
        : model_digest(hello.model_digest), kv_layout_digest(hello.kv_layout_digest) {}
    std::string model_digest, kv_layout_digest;
    bool operator==(const Build&) const = default;
  };
  size_t count(const Build& build) const;

  const Fixed fixed_;
  std::vector<std::optional<Build>> votes_;
  std::optional<Build> agreed_;
  uint64_t generation_ = 0;
};

}  // namespace tandem::router

// The small vocabulary that every module shares.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tandem {

using TokenId = int32_t;

// An integer that cannot be mixed up with another kind of integer.
template <class Tag, class Value>
struct StrongId {
  Value value{};
  auto operator<=>(const StrongId&) const = default;
};

// One hand-over of one request's KV from prefill to decode, and the name of the request's legs on
// the links. Drawn at random (64 bits) by the router, fresh for every attempt.
using TransferId = StrongId<struct TransferIdTag, uint64_t>;
// A sequence of an engine: an index below Engine::sequences_max().
using SeqId = StrongId<struct SeqIdTag, int32_t>;
// Which start of a process this is: drawn at random when a worker starts, so that a restarted
// worker is never taken for the one that died.
using Epoch = StrongId<struct EpochTag, uint64_t>;

// What a worker does now. See docs/architecture.md.
// kCoupled: one context, prompt chunks between decode steps. kPartitioned: one copy of the weights,
// a prefill and a decode context side by side.
enum class Role : uint8_t { kPrefill, kDecode, kCoupled, kPartitioned };
std::string_view role_name(Role role);
bool role_from_name(std::string_view name, Role& role);

// Does a worker of this role run prompts for others; does it generate tokens?
constexpr bool serves_prefill(Role role) {
  return role == Role::kPrefill || role == Role::kPartitioned;
}
constexpr bool serves_decode(Role role) { return role != Role::kPrefill; }

}  // namespace tandem

template <class Tag, class Value>
struct std::hash<tandem::StrongId<Tag, Value>> {
  size_t operator()(const tandem::StrongId<Tag, Value>& id) const noexcept {
    return std::hash<Value>{}(id.value);
  }
};

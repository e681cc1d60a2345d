// Proof that a peer knows the shared secret: keyed BLAKE2b over both hellos, which carry both
// nonces, and the side that proves (so that a proof cannot be sent back). Pure functions, any
// thread.
#pragma once

#include <string>
#include <string_view>

namespace tandem::link {

enum class Side : char { kDialer = 'd', kListener = 'l' };

inline constexpr size_t kNonceBytes = 16;
inline constexpr size_t kProofBytes = 32;

std::string make_nonce();
std::string make_proof(std::string_view secret, Side side, std::string_view dialer_hello,
                       std::string_view listener_hello);
// In constant time.
bool proofs_equal(std::string_view left, std::string_view right);

}  // namespace tandem::link

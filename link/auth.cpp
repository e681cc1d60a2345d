#include "link/auth.h"

#include <sodium.h>

#include <array>

#include "common/status.h"

namespace tandem::link {
namespace {

void update(crypto_generichash_state& state, std::string_view bytes) {
  // Length first, so that no two pairs of hellos run together into the same bytes.
  const auto length = static_cast<uint64_t>(bytes.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&length), sizeof length);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(bytes.data()),
                            bytes.size());
}

}  // namespace

std::string make_nonce() {
  TANDEM_CHECK(sodium_init() >= 0, "libsodium does not start");
  std::string nonce(kNonceBytes, '\0');
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

std::string make_proof(std::string_view secret, Side side, std::string_view dialer_hello,
                       std::string_view listener_hello) {
  TANDEM_CHECK(sodium_init() >= 0, "libsodium does not start");
  // Secrets have any length, keys have 32 bytes.
  std::array<unsigned char, crypto_generichash_KEYBYTES> key{};
  crypto_generichash(key.data(), key.size(), reinterpret_cast<const unsigned char*>(secret.data()),
                     secret.size(), nullptr, 0);
  crypto_generichash_state state;
  crypto_generichash_init(&state, key.data(), key.size(), kProofBytes);
  const char label = static_cast<char>(side);
  update(state, std::string_view(&label, 1));
  update(state, dialer_hello);
  update(state, listener_hello);
  std::string proof(kProofBytes, '\0');
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(proof.data()), proof.size());
  sodium_memzero(key.data(), key.size());
  return proof;
}

bool proofs_equal(std::string_view left, std::string_view right) {
  return left.size() == right.size() && sodium_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace tandem::link

// Seeds of choices, layout digests and UTF-8: small values that two processes must agree on.
#include <doctest/doctest.h>

#include <set>

#include "engine/engine.h"
#include "engine/sampling.h"
#include "engine/utf8.h"

namespace tandem {
namespace {

KvLayout small_layout() {
  KvLayout layout;
  layout.element_type = "f16";
  layout.layers = {{384, 384, 0}, {384, 384, 512}};
  return layout;
}

TEST_CASE("choices of one request have seeds of their own, the same everywhere") {
  std::set<uint64_t> seeds;
  for (int prompt = 0; prompt < 20; ++prompt) {
    for (int choice = 0; choice < 20; ++choice) seeds.insert(choice_seed(7, prompt, choice));
  }
  CHECK(seeds.size() == 400);
  CHECK(choice_seed(7, 1, 2) == choice_seed(7, 1, 2));
  CHECK(choice_seed(7, 1, 2) != choice_seed(7, 2, 1));
  CHECK(choice_seed(7, 0, 0) != choice_seed(8, 0, 0));
}

TEST_CASE("a layout's digest names everything that rows depend on") {
  const KvLayout layout = small_layout();
  CHECK(layout.bytes_per_token() == 4 * 384);
  CHECK(layout.digest().size() == 32);
  CHECK(layout.digest() == small_layout().digest());
  KvLayout other = small_layout();
  other.element_type = "q8_0";
  CHECK(other.digest() != layout.digest());
  other = small_layout();
  other.layers[1].window = 0;
  CHECK(other.digest() != layout.digest());
  other = small_layout();
  std::swap(other.layers[0], other.layers[1]);
  CHECK(other.digest() != layout.digest());
  other = small_layout();
  other.layers[0] = {380, 388, 0};
  CHECK(other.digest() != layout.digest());
  other = small_layout();
  other.layers.pop_back();
  CHECK(other.digest() != layout.digest());
}

TEST_CASE("only whole code points in shortest form are UTF-8") {
  for (const char* good :
       {"", "plain", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    CHECK(valid_utf8(good));
  }
  CHECK(valid_utf8(std::string_view("\0", 1)));
  for (const char* bad :
       {"\x80", "\xc3", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe4\xb8", "a\xff"}) {
    CHECK_FALSE(valid_utf8(bad));
  }
}

}  // namespace
}  // namespace tandem

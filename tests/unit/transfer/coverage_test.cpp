// Coverage: complete means every needed row exactly once; all else is refused.
#include "transfer/stream/coverage.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "common/random.h"

namespace tandem::transfer {
namespace {

KvLayout test_layout() {
  KvLayout layout;
  layout.element_type = "f16";
  layout.layers = {{.key_row_bytes = 10, .value_row_bytes = 6},
                   {.key_row_bytes = 4, .value_row_bytes = 4, .window = 16},
                   {.key_row_bytes = 8, .value_row_bytes = 0}};
  return layout;
}

Unit unit_of(const KvLayout& layout, int layer, KvPart part, int first, int count) {
  Unit unit;
  unit.layer = uint16_t(layer);
  unit.part = part;
  unit.first = uint32_t(first);
  unit.count = uint32_t(count);
  unit.bytes = uint32_t(count) * layout.layers[size_t(layer)].row_bytes(part);
  return unit;
}

}  // namespace

TEST_CASE("a transfer is complete when every row has landed, in whatever pieces and order") {
  const uint64_t seed = seed_from_environment();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const KvLayout layout = test_layout();
  for (int run = 0; run < 100; ++run) {
    const int tokens = 1 + int(random() % 60);
    std::vector<Unit> units;
    for (int layer = 0; layer < 3; ++layer) {
      for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
        if (layout.layers[size_t(layer)].row_bytes(part) == 0) continue;
        for (int row = first_row_needed(layout.layers[size_t(layer)], tokens); row < tokens;) {
          const int count = std::min(tokens - row, 1 + int(random() % 9));
          units.push_back(unit_of(layout, layer, part, row, count));
          row += count;
        }
      }
    }
    std::shuffle(units.begin(), units.end(), random);
    Coverage coverage(layout, tokens);
    for (const Unit& unit : units) {
      CHECK(!coverage.complete());
      CHECK(coverage.missing() != "nothing");
      REQUIRE(coverage.add(unit).ok());
      CHECK(coverage.add(unit).code() == ErrorCode::kInvalidArgument);
    }
    CHECK(coverage.complete());
    CHECK(coverage.missing() == "nothing");
  }
}

TEST_CASE("rows that nobody expects are refused") {
  const KvLayout layout = test_layout();
  Coverage coverage(layout, 40);
  const auto refused = [&](const Unit& unit) {
    return coverage.add(unit).code() == ErrorCode::kInvalidArgument && coverage.bytes() == 0;
  };
  CHECK(refused(unit_of(layout, 0, KvPart::kKey, 40, 1)));
  CHECK(refused(unit_of(layout, 0, KvPart::kKey, 39, 2)));
  CHECK(refused(unit_of(layout, 0, KvPart::kKey, 0, 0)));
  CHECK(refused(unit_of(layout, 1, KvPart::kKey, 23, 2)));  // The window begins at row 24
  CHECK(refused(unit_of(layout, 2, KvPart::kValue, 0, 1)));
  Unit unit = unit_of(layout, 0, KvPart::kKey, 0, 4);
  unit.bytes -= 1;
  CHECK(refused(unit));
  unit = unit_of(layout, 0, KvPart::kKey, 1, 1);
  unit.count = UINT32_MAX;
  CHECK(refused(unit));
  unit.layer = 3;
  CHECK(refused(unit));
}

TEST_CASE("a windowed layer needs its last rows only") {
  const KvLayout layout = test_layout();
  CHECK(first_row_needed(layout.layers[1], 10) == 0);
  CHECK(first_row_needed(layout.layers[1], 16) == 0);
  CHECK(first_row_needed(layout.layers[1], 40) == 24);
  CHECK(Coverage(layout, 40).rows_expected(1, KvPart::kKey) == 16);
  CHECK(Coverage(layout, 40).bytes_expected() == 40 * 16 + 16 * 8 + 40 * 8);
}

}  // namespace tandem::transfer

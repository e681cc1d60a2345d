#include "transfer/stream/coverage.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::transfer {

int first_row_needed(const KvLayout::Layer& layer, int tokens) {
  return layer.window > 0 ? std::max(0, tokens - layer.window) : 0;
}

Coverage::Coverage(const KvLayout& layout, int tokens)
    : layout_(layout), tokens_(tokens), landed_(layout.layers.size()) {
  for (size_t layer = 0; layer < layout.layers.size(); ++layer) {
    for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
      bytes_expected_ +=
          uint64_t(rows_expected(int(layer), part)) * layout.layers[layer].row_bytes(part);
    }
  }
}

int64_t Coverage::rows_expected(int layer, KvPart part) const {
  const KvLayout::Layer& shape = layout_.layers[size_t(layer)];
  return shape.row_bytes(part) == 0 ? 0 : tokens_ - first_row_needed(shape, tokens_);
}

Status Coverage::add(const Unit& unit) {
  const auto refuse = [&](std::string_view what) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("unit of layer {}, rows {}+{}, {} bytes: {}", unit.layer, unit.first,
                              unit.count, unit.bytes, what));
  };
  if (unit.layer >= landed_.size()) return refuse("no such layer");
  const KvLayout::Layer& shape = layout_.layers[unit.layer];
  const auto low = uint32_t(first_row_needed(shape, tokens_));
  const auto high = uint32_t(tokens_);
  if (unit.count == 0 || unit.first < low || unit.first >= high || unit.count > high - unit.first) {
    return refuse("rows that nobody expects");
  }
  if (unit.bytes == 0 || uint64_t(unit.count) * shape.row_bytes(unit.part) != unit.bytes) {
    return refuse("not the length of its rows");
  }
  Ranges& ranges = landed_[unit.layer][size_t(unit.part)];
  uint32_t begin = unit.first;
  uint32_t end = unit.first + unit.count;
  auto next = ranges.lower_bound(begin);
  if (next != ranges.end() && next->first < end) return refuse("rows that have landed before");
  if (next != ranges.begin()) {
    const auto before = std::prev(next);
    if (before->second > begin) return refuse("rows that have landed before");
    if (before->second == begin) {
      begin = before->first;
      ranges.erase(before);
    }
  }
  if (next != ranges.end() && next->first == end) {
    end = next->second;
    ranges.erase(next);
  }
  ranges[begin] = end;
  bytes_ += unit.bytes;
  return {};
}

std::string Coverage::missing() const {
  for (size_t layer = 0; layer < landed_.size(); ++layer) {
    for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
      int64_t rows = 0;
      for (const auto& [begin, end] : landed_[layer][size_t(part)]) rows += end - begin;
      if (const int64_t expected = rows_expected(int(layer), part); rows < expected) {
        return fmt::format("layer {} has {} of {} {} rows", layer, rows, expected,
                           part == KvPart::kKey ? "key" : "value");
      }
    }
  }
  return "nothing";
}

}  // namespace tandem::transfer

#include "engine/sim/sim_rows.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "common/random.h"

namespace tandem {

namespace {

constexpr uint64_t kRowSalt =
    0x74616e64656d6b76;  // Keeps rows apart from other uses of the generator
constexpr uint64_t kWordStep = 0x9e3779b97f4a7c15;

uint64_t pad(int layer, KvPart part, int position) {
  const auto row = static_cast<uint64_t>(layer) * 2 + static_cast<uint64_t>(part);
  return counter_random(kRowSalt + row, static_cast<uint64_t>(position));
}

}  // namespace

Result<SimRows> SimRows::make(const Shape& shape) {
  SimRows rows;
  rows.shape_ = shape;
  rows.bytes_ =
      static_cast<size_t>(shape.layers) * 2 * static_cast<size_t>(shape.context) * shape.row_bytes;
  void* memory = ::mmap(nullptr, rows.bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    rows.bytes_ = 0;
    return Status(ErrorCode::kResourceExhausted,
                  std::string("no address space for a sequence's rows: ") +
                      std::generic_category().message(errno));
  }
  rows.base_ = static_cast<std::byte*>(memory);
  return rows;
}

SimRows::SimRows(SimRows&& other) noexcept { *this = std::move(other); }

SimRows& SimRows::operator=(SimRows&& other) noexcept {
  if (this == &other) return *this;
  release();
  shape_ = other.shape_;
  base_ = std::exchange(other.base_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

SimRows::~SimRows() { release(); }

void SimRows::release() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
  base_ = nullptr;
}

std::span<std::byte> SimRows::rows(int layer, KvPart part, int first, int count) const {
  const size_t plane = static_cast<size_t>(layer) * 2 + static_cast<size_t>(part);
  const size_t row = plane * static_cast<size_t>(shape_.context) + static_cast<size_t>(first);
  return {base_ + row * shape_.row_bytes, static_cast<size_t>(count) * shape_.row_bytes};
}

void SimRows::fill(int layer, int first, std::span<const uint64_t> chains) {
  const size_t words = shape_.row_bytes / sizeof(uint64_t);
  for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
    std::byte* out = rows(layer, part, first, static_cast<int>(chains.size())).data();
    for (size_t i = 0; i < chains.size(); ++i) {
      uint64_t word = chains[i] ^ pad(layer, part, first + static_cast<int>(i));
      for (size_t w = 0; w < words; ++w, word += kWordStep, out += sizeof word) {
        std::memcpy(out, &word, sizeof word);
      }
    }
  }
}

uint64_t SimRows::chain_at(int position) const {
  uint64_t word;
  std::memcpy(&word, rows(0, KvPart::kKey, position, 1).data(), sizeof word);
  return word ^ pad(0, KvPart::kKey, position);
}

int SimRows::mismatches(int position, uint64_t chain) const {
  const size_t words = shape_.row_bytes / sizeof(uint64_t);
  int wrong = 0;
  for (int layer = 0; layer < shape_.layers; ++layer) {
    for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
      const std::byte* in = rows(layer, part, position, 1).data();
      uint64_t expected = chain ^ pad(layer, part, position);
      uint64_t difference = 0;
      for (size_t w = 0; w < words; ++w, expected += kWordStep, in += sizeof expected) {
        uint64_t word;
        std::memcpy(&word, in, sizeof word);
        difference |= word ^ expected;
      }
      wrong += difference != 0;
    }
  }
  return wrong;
}

void SimRows::clear() {
  if (base_ != nullptr) ::madvise(base_, bytes_, MADV_DONTNEED);
}

}  // namespace tandem

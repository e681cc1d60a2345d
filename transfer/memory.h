// MappedMemory: private, prefaulted pages. And the checks that come before touching much memory.
// Values; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "common/status.h"

namespace tandem::transfer {

// kResourceExhausted when `bytes` more would not fit what is free or what the process may have.
Status check_memory_room(size_t bytes);
// kResourceExhausted when /dev/shm has no room for `bytes`: touching such pages would be a bus
// error.
Status check_shm_room(size_t bytes);

// Makes every page of a mapping present and writable without changing a byte.
void prefault(std::span<std::byte> memory);

class MappedMemory {
 public:
  static Result<MappedMemory> allocate(size_t bytes);
  MappedMemory(MappedMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedMemory& operator=(MappedMemory&&) = delete;
  ~MappedMemory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedMemory(std::span<std::byte> bytes) : bytes_(bytes) {}

  std::span<std::byte> bytes_;
};

}  // namespace tandem::transfer

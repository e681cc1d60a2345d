#include "transfer/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <string>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace tandem::transfer {
namespace {

Status exhausted(size_t bytes, std::string_view where, size_t free_bytes) {
  return Status(ErrorCode::kResourceExhausted,
                fmt::format("{} bytes of landing memory do not fit: {} has {} bytes free", bytes,
                            where, free_bytes));
}

// The number that follows the word `name` in a kernel's table; 0 when there is none.
size_t named_value(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    size_t value = 0;
    if (word == name && file >> value) return value;
  }
  return 0;
}

// A number in a control-group file; nothing for "max" or no file.
bool read_number(const char* path, size_t& out) { return bool(std::ifstream(path) >> out); }

}  // namespace

Status check_memory_room(size_t bytes) {
  const size_t available = named_value("/proc/meminfo", "MemAvailable:") << 10;
  if (available != 0 && bytes > available) return exhausted(bytes, "the machine", available);
  size_t limit = 0;
  size_t used = 0;
  if (read_number("/sys/fs/cgroup/memory.max", limit) &&
      read_number("/sys/fs/cgroup/memory.current", used)) {
    // File pages that nobody uses make room when it is needed.
    used -= std::min(used, named_value("/sys/fs/cgroup/memory.stat", "inactive_file"));
    const size_t room = limit > used ? limit - used : 0;
    if (bytes > room) return exhausted(bytes, "the control group", room);
  }
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    const size_t mapped = named_value("/proc/self/status", "VmSize:") << 10;
    const size_t room = space.rlim_cur > mapped ? space.rlim_cur - mapped : 0;
    if (bytes > room) return exhausted(bytes, "RLIMIT_AS", room);
  }
  return {};
}

Status check_shm_room(size_t bytes) {
  struct statvfs room {};
  if (::statvfs("/dev/shm", &room) != 0) {
    return Status(ErrorCode::kResourceExhausted, "/dev/shm is not there");
  }
  const size_t available = size_t(room.f_bavail) * room.f_frsize;
  return bytes > available ? exhausted(bytes, "/dev/shm", available) : Status();
}

void prefault(std::span<std::byte> memory) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(memory.data()) & ~(page - 1);
  const auto end = reinterpret_cast<uintptr_t>(memory.data()) + memory.size();
  if (::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE) == 0) return;
  // Kernels before 5.14. Adding nothing atomically faults the page in without racing with a peer's
  // write.
  for (size_t offset = 0; offset < memory.size(); offset += page) {
    std::atomic_ref(reinterpret_cast<uint8_t&>(memory[offset])).fetch_or(0);
  }
}

Result<MappedMemory> MappedMemory::allocate(size_t bytes) {
  TANDEM_RETURN_IF_ERROR(check_memory_room(bytes));
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(ErrorCode::kResourceExhausted,
                  fmt::format("cannot map {} bytes of landing memory", bytes));
  }
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  MappedMemory mapped(std::span(static_cast<std::byte*>(memory), bytes));
  prefault(mapped.bytes());
  return mapped;
}

MappedMemory::~MappedMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace tandem::transfer

#include "engine/llama/gguf_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "engine/digest.h"

namespace tandem {

namespace {

constexpr uint64_t kSliceBytes = 4096;
constexpr uint64_t kSlices = 256;

// Magic first: libllama's reader explains little about files that are something else.
Status check_magic(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return Status(ErrorCode::kNotFound, "model file " + path + " does not exist");
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    return Status(ErrorCode::kInvalidArgument, "model file " + path + " is not a file");
  }
  std::ifstream in(path, std::ios::binary);
  std::array<char, 4> magic{};
  if (!in) {
    return Status(ErrorCode::kNotFound, "model file " + path + " cannot be read: " +
                                            std::generic_category().message(errno));
  }
  if (!in.read(magic.data(), magic.size()) || std::memcmp(magic.data(), "GGUF", 4) != 0) {
    return Status(ErrorCode::kInvalidArgument, "model file " + path + " is not a GGUF file");
  }
  return {};
}

// One past the last byte that the index says belongs to a tensor.
uint64_t bytes_needed(const gguf_context* file) {
  uint64_t end = gguf_get_data_offset(file);
  for (int64_t i = 0; i < gguf_get_n_tensors(file); ++i) {
    end = std::max<uint64_t>(end, gguf_get_data_offset(file) + gguf_get_tensor_offset(file, i) +
                                      gguf_get_tensor_size(file, i));
  }
  return end;
}

}  // namespace

Result<GgufFile> open_gguf(const std::string& path) {
  TANDEM_RETURN_IF_ERROR(check_magic(path));
  GgufFile gguf;
  std::error_code error;
  gguf.bytes = std::filesystem::file_size(path, error);
  ggml_context* tensors = nullptr;
  const gguf_init_params params{.no_alloc = true, .ctx = &tensors};
  gguf.file.reset(gguf_init_from_file(path.c_str(), params));
  gguf.tensors.reset(tensors);
  if (gguf.file == nullptr) {
    return Status(ErrorCode::kDataLoss,
                  "model file " + path + " has a damaged or truncated header");
  }
  if (const uint64_t needed = bytes_needed(gguf.file.get()); gguf.bytes < needed) {
    return Status(ErrorCode::kDataLoss, "model file " + path +
                                            " is truncated: " + std::to_string(gguf.bytes) +
                                            " bytes of " + std::to_string(needed));
  }
  return gguf;
}

Result<std::string> gguf_digest(const std::string& path, const GgufFile& gguf) {
  std::ifstream in(path, std::ios::binary);
  const uint64_t header = gguf_get_data_offset(gguf.file.get());
  Digest digest("gguf");
  digest.add(gguf.bytes);
  std::vector<char> buffer;
  const auto add = [&](uint64_t offset, uint64_t size) {
    buffer.resize(size);
    in.seekg(static_cast<std::streamoff>(offset));
    in.read(buffer.data(), static_cast<std::streamsize>(size));
    digest.add(std::string_view(buffer.data(), size));
  };
  add(0, header);
  const uint64_t data = gguf.bytes - header;
  for (uint64_t i = 0; i < kSlices; ++i) {
    const uint64_t offset = header + data / kSlices * i;
    add(offset, std::min(kSliceBytes, gguf.bytes - offset));
  }
  if (!in) return Status(ErrorCode::kDataLoss, "model file " + path + " cannot be read");
  return digest.hex();
}

}  // namespace tandem

// Damaged model files end in a Status that names the file. Skipped without the model.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "common/random.h"
#include "engine/engine.h"
#include "engine/tokenizer.h"

namespace tandem {
namespace {

constexpr const char* kModel = "models/smollm2-135m-instruct-q4_0.gguf";

// A file that lives as long as the test.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& content)
      : path_(std::filesystem::temp_directory_path() /
              ("tandem-" + std::to_string(random_u64()) + ".gguf")) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~ScratchFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string model_bytes(size_t count) {
  std::ifstream in(kModel, std::ios::binary);
  if (!in) {
    std::cout << "skipped: " << kModel << " is not there, run scripts/setup.sh\n";
    std::exit(77);
  }
  std::string bytes(count, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(count));
  return bytes;
}

void check_refused(const std::string& content, ErrorCode code) {
  const ScratchFile file(content);
  Config config;
  config.model.path = file.path();
  for (const Status& status :
       {make_engine(config, 1, 1).status(), make_tokenizer(config).status()}) {
    CHECK(status.code() == code);
    CHECK(status.message().find(file.path()) != std::string::npos);
  }
}

TEST_CASE("files that are not GGUF are refused") {
  check_refused("", ErrorCode::kInvalidArgument);
  check_refused("PK\x03\x04 something else", ErrorCode::kInvalidArgument);
}

TEST_CASE("a file cut inside its header is refused") {
  check_refused(model_bytes(64), ErrorCode::kDataLoss);
  check_refused(model_bytes(100000), ErrorCode::kDataLoss);
}

TEST_CASE("a file cut inside its weights is refused") {
  check_refused(model_bytes(40000000), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace tandem

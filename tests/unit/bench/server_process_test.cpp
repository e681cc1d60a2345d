// Servers that a comparison starts leave nothing behind, and say why when they fail.
#include "bench/server_process.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "bench/comparison.h"

namespace tandem::bench {
namespace {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / (std::to_string(getpid()) + name)) {}
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Polls another process's output, at most for 10 s.
std::string first_line_of(const std::string& file) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::string line;
  while (std::chrono::steady_clock::now() < deadline) {
    std::ifstream in(file);
    if (std::getline(in, line) && !in.eof()) return line;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return {};
}

TEST_CASE("stopping a server ends its children too") {
  const TemporaryFile log("children.log");
  auto process = ServerProcess::start({"/bin/sh", "-c", "sleep 1000 & echo $!; wait"}, log.path());
  REQUIRE(process.ok());
  const std::string child = first_line_of(log.path());
  REQUIRE_FALSE(child.empty());
  CHECK(process->running().ok());
  process->stop();
  CHECK(kill(std::stoi(child), 0) != 0);
  process->stop();
}

TEST_CASE("a server that ends by itself tells how, with its last output") {
  const TemporaryFile log("ended.log");
  auto process =
      ServerProcess::start({"/bin/sh", "-c", "echo the port is taken; exit 3"}, log.path());
  REQUIRE(process.ok());
  const Status status = process->running(std::chrono::seconds(10));
  CHECK(status.message().find("exit status 3") != std::string::npos);
  CHECK(status.message().find("the port is taken") != std::string::npos);
}

TEST_CASE("a program that is not there is named") {
  const TemporaryFile log("missing.log");
  auto process = ServerProcess::start({"/nowhere/program"}, log.path());
  REQUIRE(process.ok());
  CHECK(process->running(std::chrono::seconds(10)).message().find("status 127") !=
        std::string::npos);
  CHECK(first_line_of(log.path()).find("/nowhere/program: No such file") != std::string::npos);
}

TEST_CASE("targets are addresses, commands with an address, or configurations") {
  Options options;
  options.compare = {"left@url=http://127.0.0.1:9", "cmd:llama-server -m x.gguf --port 91"};
  options.wait_urls = {"http://127.0.0.1:91"};
  const auto targets = parse_targets(options);
  REQUIRE(targets.ok());
  CHECK((*targets)[0].label == "left");
  CHECK((*targets)[0].url == "http://127.0.0.1:9");
  CHECK((*targets)[1].kind == Target::Kind::kCommand);
  CHECK((*targets)[1].label == "llama-server");
  CHECK((*targets)[1].what == "llama-server -m x.gguf --port 91");
  CHECK((*targets)[1].url == "http://127.0.0.1:91");
  options.wait_urls.clear();
  CHECK_FALSE(parse_targets(options).ok());
  options.compare = {"/nowhere/config.yaml"};
  CHECK_FALSE(parse_targets(options).ok());
}

TEST_CASE("a configuration says where its server listens") {
  const TemporaryFile file("config.yaml");
  std::ofstream(file.path()) << "model: { engine: sim, name: m }\n"
                                "pools: { prefill: { replicas: 1 }, decode: { replicas: 1 } }\n"
                                "router: { listen: \"0.0.0.0:9123\", admin: \"127.0.0.1:9124\" }\n";
  Options options;
  options.compare = {file.path()};
  const auto targets = parse_targets(options);
  REQUIRE(targets.ok());
  CHECK((*targets)[0].url == "http://127.0.0.1:9123");
}

}  // namespace
}  // namespace tandem::bench

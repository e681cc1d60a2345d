#include <filesystem>
#include <iostream>

#include "tests/contract/worker/subject.h"

namespace tandem::worker {
namespace {

constexpr char kModel[] = "models/smollm2-135m-instruct-q4_0.gguf";

}  // namespace

bool subject_available() {
  if (std::filesystem::exists(kModel)) return true;
  std::cout << "skipped: " << kModel << " is not there, run scripts/setup.sh\n";
  return false;
}

Config subject_config() {
  Config config;
  config.model.path = kModel;
  config.model.name = "smol";
  config.model.context = 1024;
  config.prefill.slots = 2;
  config.decode.slots = 4;
  config.coupled.slots = 4;
  config.partitioned.slots = 3;
  config.transfer.landing_bytes = 16ll << 20;
  config.link.silence_max = Milliseconds(30000);
  return config;
}

}  // namespace tandem::worker

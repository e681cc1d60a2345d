#include "tests/contract/engine/subject.h"

namespace tandem {

Config subject_config() {
  Config config;
  config.model.path = "models/gemma-3-270m-q4_k_m.gguf";
  config.model.context = 1024;
  return config;
}

}  // namespace tandem

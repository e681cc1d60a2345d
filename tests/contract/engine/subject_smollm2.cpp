#include "tests/contract/engine/subject.h"

namespace tandem {

Config subject_config() {
  Config config;
  config.model.path = "models/smollm2-135m-instruct-q4_0.gguf";
  config.model.context = 1024;
  return config;
}

}  // namespace tandem

#include "tests/contract/engine/subject.h"

namespace tandem {

Config subject_config() {
  Config config;
  config.model.engine = "sim";
  config.model.context = 1024;
  config.sim.layers = 6;
  config.sim.kv_bytes_per_token = 1024;
  config.sim.prefill_base_ms = 10;  // Long enough to be aborted inside
  config.sim.prefill_per_token_us = 100;
  config.sim.decode_base_ms = 0.1;
  config.sim.decode_per_sequence_ms = config.sim.decode_per_context_us = 0;
  return config;
}

}  // namespace tandem

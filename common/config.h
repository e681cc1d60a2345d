// The one configuration of every executable: a YAML file, plus `--set key=value` on the command
// line.
//
// The initialisers below are the defaults. Unknown keys, wrong types and values out of range stop
// the start with file, line, key and the allowed range. docs/operations.md lists every key; a test
// compares that list with this file.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/status.h"
#include "common/types.h"

namespace tandem {

using Milliseconds = std::chrono::milliseconds;

struct ModelConfig {
  std::string engine = "llama";  // llama | sim
  std::string path;              // GGUF file; engine llama only
  std::string name;              // What /v1/models shows; default: the file's stem
  int context = 4096;            // Tokens per sequence, prompt plus output
};

// How long the sim engine's steps take, and the shape of its KV cache. scheduling.md section 2.1.
struct SimConfig {
  double prefill_base_ms = 18.1;           // a0
  double prefill_per_token_us = 65.8;      // a1
  double prefill_per_token2_us = 1.68e-3;  // a2, per token squared
  double decode_base_ms = 12.2;            // w: reading the weights once
  double decode_per_sequence_ms = 0.04;    // beta
  double decode_per_context_us = 0.086;    // gamma, per token of context
  int layers = 32;
  int64_t kv_bytes_per_token = 131072;  // All layers, K and V together
  int vocab = 32000;
  int workers_per_process = 8;  // How many sim workers `tandem up` puts into one process
};

struct EngineConfig {
  int chunk_tokens = 256;       // The fixed prompt grid; at least 64
  int self_check_tokens = 192;  // Length of the start-up self-check's prompt
};

struct PoolConfig {
  Role role = Role::kDecode;
  int replicas = 0;  // Processes that `tandem up` starts here
  int threads = 1;   // Compute threads per worker
  int slots = 16;    // Sequences at once per worker
  // tcp://host:port of workers that run elsewhere, or started by hand
  std::vector<std::string> workers;
};

// How a partitioned worker's threads and processors are divided between its two halves.
struct ShareConfig {
  int prefill = 50;
  int decode = 50;
};

struct RatioConfig {
  std::string mode = "fixed";  // fixed | split | auto | recommend
  int prefill = 0;             // "3:5" gives 3 and 5
  int decode = 0;
  int total = 0;  // Workers that a ratio divides; with auto and recommend how many to start
  // Bounds of auto and recommend; a maximum of 0 is none
  int prefill_min = 0;
  int prefill_max = 0;
  int decode_min = 0;
  int decode_max = 0;
  std::string coupled = "allow";  // allow | never
  Milliseconds dwell{5000};       // Between two moves of workers, unless the load runs away
};

struct SloConfig {
  Milliseconds ttft{2000};
  Milliseconds tpot{80};
  std::string on_miss = "serve";  // serve | refuse
};

struct TransferConfig {
  std::string transport = "auto";  // auto | ucx | tcp
  // Landing memory of a decode worker, whatever the prompts' lengths
  int64_t landing_bytes = 64ll << 20;
  int64_t segment_bytes = 8ll << 20;     // The part of it that one transfer may write to
  int64_t unit_bytes_min = 128ll << 10;  // Smaller rows are gathered into messages of at least this
  bool integrity = true;                 // CRC-32C over every unit
  Milliseconds grant_deadline{10000};    // A stream waits this long for landing space
  Milliseconds progress_deadline{5000};  // A stream that moves nothing for this long has failed
  int streams_max = 256;                 // Open transfers per worker
  std::string fault;                     // Seeded faults for tests, e.g. "seed=7,corrupt=0.01"
};

struct LinkConfig {
  std::string listen = "127.0.0.1:0";  // A worker's link port; port 0 lets the kernel choose
  std::string secret_file;             // Shared secret; required when listening beyond loopback
  Milliseconds heartbeat{1000};
  Milliseconds silence_max{3000};  // A peer silent for this long is dead
  Milliseconds connect_deadline{2000};
  // Per connection; a peer that does not read is cut off there
  int64_t send_queue_bytes = 16ll << 20;
  int64_t frame_bytes_max = 16ll << 20;
  int connections_max = 256;
};

struct WorkerConfig {
  // Running legs have this long to end before a change of role sends them elsewhere
  Milliseconds role_drain{5000};
  Milliseconds stop_quiesce{2000};  // At a stop, for transfers to end in order
  // A router that reads no tokens for this long loses the answers that wait for it
  Milliseconds slow_router{10000};
  // A prompt chunk waits this long at most for decode steps to get ahead of their target
  Milliseconds chunk_wait{1000};
};

struct SchedulerConfig {
  std::string policy = "slack";  // slack | least_backlog | static_split | round_robin
  int queue_max = 1024;          // Requests that wait for a worker
  Milliseconds queue_deadline{30000};
  // Prompt tokens being computed or computed whose KV has not joined a decode batch
  int unconsumed_tokens_max = 4 << 20;
  int retries_max = 3;  // Fresh attempts after a worker's loss, per request
  // Cost profile that the workers' models start from; empty: the sim section where the engine is
  // sim, else what the workers measure
  std::string profile;
  double output_quantile = 0.7;  // Of a tenant's output lengths, by which capacity is promised
  int tenants_max = 1024;        // Whose output lengths and turns are remembered
  std::string tenant_weights;    // "gold=4,free=0.5"; 1 where not named
  Milliseconds starvation{10000};
  int64_t prefix_index_bytes = 64ll << 20;
  int prefix_block_tokens = 256;
  int64_t session_index_bytes = 4ll << 20;
  int64_t handover_bytes_per_second = 10ll << 30;  // From one worker to another
};

struct RouterConfig {
  std::string listen = "127.0.0.1:8080";
  std::string admin = "127.0.0.1:8081";
  int threads = 1;
  int tokenizer_threads = 1;
  int64_t body_bytes_max = 32ll << 20;
  int64_t header_bytes_max = 64ll << 10;
  int connections_max = 8192;
  int requests_max = 4096;             // Requests inside the router at once
  Milliseconds read_deadline{60000};   // For the rest of a request once its first byte is here
  Milliseconds idle_deadline{300000};  // Keep-alive connections
  Milliseconds write_deadline{30000};  // A client that takes no byte for this long is gone
  Milliseconds request_deadline{600000};
  Milliseconds drain_deadline{30000};
  Milliseconds template_deadline{1000};  // One rendering of a chat template
  Milliseconds keepalive{15000};         // Silence on a stream before a comment line
  int n_max = 16;
  int prompts_max = 1024;
  // How long a phase may show no sign of life although the workers' links are alive
  Milliseconds prefill_quiet{60000};  // Plus ten times the prediction
  Milliseconds decode_quiet{30000};   // Between two tokens
  Milliseconds sweep{200};            // Between two looks for such phases
  Milliseconds role_deadline{30000};  // For a worker to carry out a change of its role
  std::string decision_log;           // File for the scheduler's inputs and decisions; empty: none
  int64_t decision_log_bytes_max = 256ll << 20;  // Of it; then one older file is kept
  int timelines_max = 4096;                      // Recent requests that /v1/requests/{id} remembers
  // Interpreter with Jinja2; default: .venv beside the programs
  std::string python;
};

// The pipeline's stages: how many requests (received, tokenised, write) or attempts may be in each,
// those before it included from `prefill` on, since what is dispatched cannot be held up. The limit
// of the queue between tokenised and prefill is scheduler.queue_max.
struct StagesConfig {
  int received = 4096;   // Being parsed and tokenised
  int tokenised = 8192;  // Prompts that are not with the scheduler yet
  int prefill = 4096;
  int stream = 4096;  // Computed, KV on its way
  int land = 4096;    // Arrived, not in the cache
  int join = 4096;    // In the cache, not in the batch
  int decode = 65536;
  int write = 8192;  // Clients that have not taken what was written
};

struct LogConfig {
  std::string level = "info";  // error | warn | info | debug
};

struct Config {
  ModelConfig model;
  SimConfig sim;
  EngineConfig engine;
  PoolConfig prefill{.role = Role::kPrefill, .slots = 4};
  PoolConfig decode{.role = Role::kDecode};
  PoolConfig coupled{.role = Role::kCoupled};
  PoolConfig partitioned{.role = Role::kPartitioned, .threads = 2};
  ShareConfig share;
  RatioConfig ratio;
  SloConfig slo;
  TransferConfig transfer;
  LinkConfig link;
  WorkerConfig worker;
  SchedulerConfig scheduler;
  RouterConfig router;
  StagesConfig stages;
  LogConfig log;

  const PoolConfig& pool(Role role) const;
};

// Reads `file`, then applies each of `overrides` ("router.listen=127.0.0.1:9000"), then checks
// every value and the whole. The message of a failure names file, line, key, what was found and
// what is allowed.
Result<Config> load_config(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides = {});
// The same for text that is not in a file; `name` stands for the file in messages.
Result<Config> parse_config(const std::string& text, const std::string& name,
                            const std::vector<std::string>& overrides = {});
// The effective configuration as YAML that load_config() reads back; logged once at start.
std::string dump_config(const Config& config);
// Every key with default, range and meaning, as the Markdown table of docs/operations.md.
std::string config_markdown();

// "gold=4,free=0.5" of scheduler.tenant_weights; nothing when it is not that.
std::optional<std::unordered_map<std::string, double>> parse_weights(const std::string& text);

// "host:port", "[v6]:port" or "tcp://host:port".
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
Result<HostPort> parse_host_port(std::string_view text);

}  // namespace tandem

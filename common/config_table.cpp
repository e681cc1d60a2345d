#include "common/config_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "common/log.h"
#include "common/units.h"

namespace tandem {
namespace {

// Where a value lives: a section of Config, and a member of that section.
template <class Section, class Value>
struct Place {
  Section Config::*section;
  Value Section::*member;
  Value& in(Config& config) const { return config.*section.*member; }
  const Value& in(const Config& config) const { return config.*section.*member; }
};

std::optional<std::string> scalar(const YAML::Node& node) {
  if (!node.IsScalar()) return std::nullopt;
  return node.Scalar();
}

// A key whose value goes through `parse` (text to optional<Value>) and `print` (Value to text).
template <class Section, class Value, class Parse, class Print>
ConfigKey scalar_key(std::string path, Place<Section, Value> place, std::string allowed,
                     std::string help, Parse parse, Print print) {
  return {std::move(path), std::move(allowed), std::move(help),
          [place, parse](Config& config, const YAML::Node& node) {
            const auto text = scalar(node);
            if (!text) return false;
            const std::optional<Value> value = parse(*text);
            if (value) place.in(config) = *value;
            return value.has_value();
          },
          [place, print](const Config& config) { return YAML::Node(print(place.in(config))); }};
}

std::string range_text(const std::string& min, const std::string& max) {
  return min + " to " + max;
}

template <class Section>
ConfigKey integer(std::string path, Section Config::*section, int Section::*member, int min,
                  int max, std::string help) {
  return scalar_key(
      std::move(path), Place<Section, int>{section, member},
      range_text(std::to_string(min), std::to_string(max)), std::move(help),
      [min, max](const std::string& text) -> std::optional<int> {
        const auto value = parse_integer(text);
        if (!value || *value < min || *value > max) return std::nullopt;
        return static_cast<int>(*value);
      },
      [](int value) { return std::to_string(value); });
}

template <class Section>
ConfigKey bytes(std::string path, Section Config::*section, int64_t Section::*member, int64_t min,
                int64_t max, std::string help) {
  return scalar_key(
      std::move(path), Place<Section, int64_t>{section, member},
      range_text(format_bytes(min), format_bytes(max)), std::move(help),
      [min, max](const std::string& text) -> std::optional<int64_t> {
        const auto value = parse_bytes(text);
        return value && *value >= min && *value <= max ? value : std::nullopt;
      },
      format_bytes);
}

template <class Section>
ConfigKey milliseconds(std::string path, Section Config::*section, Milliseconds Section::*member,
                       int64_t min, int64_t max, std::string help) {
  return scalar_key(
      std::move(path), Place<Section, Milliseconds>{section, member},
      range_text(std::to_string(min), std::to_string(max)), std::move(help),
      [min, max](const std::string& text) -> std::optional<Milliseconds> {
        const auto value = parse_integer(text);
        if (!value || *value < min || *value > max) return std::nullopt;
        return Milliseconds(*value);
      },
      [](Milliseconds value) { return std::to_string(value.count()); });
}

template <class Section>
ConfigKey number(std::string path, Section Config::*section, double Section::*member, double max,
                 std::string help) {
  return scalar_key(
      std::move(path), Place<Section, double>{section, member}, fmt::format("0 to {}", max),
      std::move(help),
      [max](const std::string& text) -> std::optional<double> {
        const auto value = parse_number(text);
        return value && *value >= 0 && *value <= max ? value : std::nullopt;
      },
      [](double value) { return fmt::format("{}", value); });
}

template <class Section>
ConfigKey boolean(std::string path, Section Config::*section, bool Section::*member,
                  std::string help) {
  return scalar_key(
      std::move(path), Place<Section, bool>{section, member}, "true | false", std::move(help),
      [](const std::string& text) -> std::optional<bool> {
        if (text != "true" && text != "false") return std::nullopt;
        return text == "true";
      },
      [](bool value) { return value ? "true" : "false"; });
}

// Text that `accept` takes.
template <class Section, class Accept>
ConfigKey text_where(std::string path, Section Config::*section, std::string Section::*member,
                     std::string allowed, std::string help, Accept accept) {
  return scalar_key(
      std::move(path), Place<Section, std::string>{section, member}, std::move(allowed),
      std::move(help),
      [accept](const std::string& text) -> std::optional<std::string> {
        return accept(text) ? std::optional(text) : std::nullopt;
      },
      [](const std::string& value) { return value; });
}

template <class Section>
ConfigKey text(std::string path, Section Config::*section, std::string Section::*member,
               std::string allowed, std::string help) {
  return text_where(std::move(path), section, member, std::move(allowed), std::move(help),
                    [](const std::string&) { return true; });
}

template <class Section>
ConfigKey choice(std::string path, Section Config::*section, std::string Section::*member,
                 std::vector<std::string> names, std::string help) {
  std::string allowed = fmt::format("{}", fmt::join(names, " | "));
  return text_where(std::move(path), section, member, std::move(allowed), std::move(help),
                    [names = std::move(names)](const std::string& value) {
                      return std::ranges::find(names, value) != names.end();
                    });
}

template <class Section>
ConfigKey address(std::string path, Section Config::*section, std::string Section::*member,
                  std::string help) {
  return text_where(std::move(path), section, member, "host:port", std::move(help),
                    [](const std::string& value) { return parse_host_port(value).ok(); });
}

bool is_worker_address(const std::string& value) {
  return value.starts_with("tcp://") && parse_host_port(value).ok();
}

ConfigKey workers(std::string path, PoolConfig Config::*pool) {
  return {std::move(path), "tcp://host:port, or a list of them",
          "Workers of this pool that run elsewhere or are started by hand",
          [pool](Config& config, const YAML::Node& node) {
            std::vector<std::string> addresses;
            if (node.IsScalar()) {
              addresses.push_back(node.Scalar());
            } else if (node.IsSequence()) {
              for (const YAML::Node& item : node) {
                if (!item.IsScalar()) return false;
                addresses.push_back(item.Scalar());
              }
            } else {
              return false;
            }
            if (!std::ranges::all_of(addresses, is_worker_address)) return false;
            (config.*pool).workers = std::move(addresses);
            return true;
          },
          [pool](const Config& config) {
            YAML::Node list(YAML::NodeType::Sequence);
            list.SetStyle(YAML::EmitterStyle::Flow);
            for (const std::string& address : (config.*pool).workers) list.push_back(address);
            return list;
          }};
}

// "3:5", the short form of the keys under `ratio`.
bool read_ratio(Config& config, const YAML::Node& node) {
  const auto value = scalar(node);
  if (!value) return false;
  const size_t colon = value->find(':');
  if (colon == std::string::npos) return false;
  const auto prefill = parse_integer(std::string_view(*value).substr(0, colon));
  const auto decode = parse_integer(std::string_view(*value).substr(colon + 1));
  const auto share = [](const auto& part) { return part && *part >= 1 && *part <= 1000; };
  if (!share(prefill) || !share(decode)) return false;
  config.ratio.mode = "split";
  config.ratio.prefill = static_cast<int>(*prefill);
  config.ratio.decode = static_cast<int>(*decode);
  return true;
}

void add_pool(std::vector<ConfigKey>& keys, const std::string& name, PoolConfig Config::*pool) {
  const std::string at = "pools." + name + ".";
  keys.push_back(integer(at + "replicas", pool, &PoolConfig::replicas, 0, 1000,
                         "Workers that `tandem up` starts on this machine"));
  keys.push_back(integer(at + "threads", pool, &PoolConfig::threads, 1, 256,
                         "Compute threads of each worker"));
  keys.push_back(integer(at + "slots", pool, &PoolConfig::slots, 1, 1024,
                         "Sequences that a worker holds at once"));
  keys.push_back(workers(at + "workers", pool));
  ConfigKey total = integer(at + "total", &Config::ratio, &RatioConfig::total, 2, 2000,
                            "The same as ratio.total");
  total.show = nullptr;
  keys.push_back(std::move(total));
}

void add_model(std::vector<ConfigKey>& keys) {
  constexpr auto kModel = &Config::model;
  keys.push_back(
      choice("model.engine", kModel, &ModelConfig::engine, {"llama", "sim"},
             "llama runs a GGUF file; sim has no weights and only takes the time of one"));
  keys.push_back(
      text("model.path", kModel, &ModelConfig::path, "a GGUF file",
           "Looked for from the current directory, then from the folders above this file"));
  keys.push_back(text("model.name", kModel, &ModelConfig::name, "text",
                      "What clients ask for; empty: the file's name without its ending"));
  keys.push_back(integer("model.context", kModel, &ModelConfig::context, 128, 1 << 20,
                         "Tokens of a sequence at most, prompt and output together"));

  constexpr auto kEngine = &Config::engine;
  keys.push_back(integer("engine.chunk_tokens", kEngine, &EngineConfig::chunk_tokens, 64, 4096,
                         "The fixed grid on which prompts run; the same on every worker"));
  keys.push_back(integer("engine.self_check_tokens", kEngine, &EngineConfig::self_check_tokens, 64,
                         4096, "Length of the prompt of the check at start"));
}

void add_sim(std::vector<ConfigKey>& keys) {
  constexpr auto kSim = &Config::sim;
  keys.push_back(number("sim.prefill_base_ms", kSim, &SimConfig::prefill_base_ms, 1e6,
                        "Prefill: a chunk's fixed time"));
  keys.push_back(number("sim.prefill_per_token_us", kSim, &SimConfig::prefill_per_token_us, 1e6,
                        "Prefill: time per token"));
  keys.push_back(number("sim.prefill_per_token2_us", kSim, &SimConfig::prefill_per_token2_us, 1e6,
                        "Prefill: time per token and token before it"));
  keys.push_back(number("sim.decode_base_ms", kSim, &SimConfig::decode_base_ms, 1e6,
                        "Decode: a step's fixed time (reading the weights once)"));
  keys.push_back(number("sim.decode_per_sequence_ms", kSim, &SimConfig::decode_per_sequence_ms, 1e6,
                        "Decode: time per sequence in the step"));
  keys.push_back(number("sim.decode_per_context_us", kSim, &SimConfig::decode_per_context_us, 1e6,
                        "Decode: time per token of context in the step"));
  keys.push_back(integer("sim.layers", kSim, &SimConfig::layers, 1, 512, "Layers of the cache"));
  keys.push_back(bytes("sim.kv_bytes_per_token", kSim, &SimConfig::kv_bytes_per_token, 2,
                       64ll << 20, "Cache bytes of one token, all layers, K and V together"));
  keys.push_back(integer("sim.vocab", kSim, &SimConfig::vocab, 300, 1 << 20, "Tokens that exist"));
  keys.push_back(integer("sim.workers_per_process", kSim, &SimConfig::workers_per_process, 1, 64,
                         "How many sim workers `tandem up` puts into one process"));
}

void add_ratio_and_slo(std::vector<ConfigKey>& keys) {
  keys.push_back({"ratio", "fixed | auto | recommend | two numbers from 1 to 1000 as \"3:5\"",
                  "Short form: prefill workers to decode workers, of ratio.total",
                  [](Config& config, const YAML::Node& node) {
                    const auto mode = scalar(node);
                    if (mode != "fixed" && mode != "auto" && mode != "recommend")
                      return read_ratio(config, node);
                    config.ratio = RatioConfig{};
                    config.ratio.mode = *mode;
                    return true;
                  },
                  nullptr});
  constexpr auto kRatio = &Config::ratio;
  keys.push_back(choice("ratio.mode", kRatio, &RatioConfig::mode,
                        {"fixed", "split", "auto", "recommend"},
                        "fixed: pools.*.replicas count; split: prefill and decode share a total; "
                        "auto: workers change roles with the load; recommend: only reported"));
  const auto role = [&](const std::string& name, int RatioConfig::*part, int RatioConfig::*min,
                        int RatioConfig::*max) {
    const std::string at = "ratio." + name;
    ConfigKey shorthand = integer(at, kRatio, part, 0, 1000, "The same as " + at + ".part");
    shorthand.show = nullptr;
    keys.push_back(std::move(shorthand));
    keys.push_back(
        integer(at + ".part", kRatio, part, 0, 1000, "The " + name + " part of a split"));
    keys.push_back(
        integer(at + ".min", kRatio, min, 0, 1000, "Fewest " + name + " workers that auto leaves"));
    keys.push_back(integer(at + ".max", kRatio, max, 0, 1000,
                           "Most " + name + " workers that auto makes; 0: no limit"));
  };
  role("prefill", &RatioConfig::prefill, &RatioConfig::prefill_min, &RatioConfig::prefill_max);
  role("decode", &RatioConfig::decode, &RatioConfig::decode_min, &RatioConfig::decode_max);
  keys.push_back(choice("ratio.coupled", kRatio, &RatioConfig::coupled, {"allow", "never"},
                        "May auto turn workers coupled where the targets are loose"));
  keys.push_back(milliseconds("ratio.dwell_ms", kRatio, &RatioConfig::dwell, 0, 3600000,
                              "Between two moves of workers, unless the load runs away"));
  keys.push_back(
      integer("ratio.total", kRatio, &RatioConfig::total, 0, 2000,
              "Workers that a split divides, 0: the sum of its parts; with auto: how many "
              "start, halved"));

  constexpr auto kSlo = &Config::slo;
  keys.push_back(milliseconds("slo.ttft_ms", kSlo, &SloConfig::ttft, 1, 3600000,
                              "Wished time to the first token"));
  keys.push_back(milliseconds("slo.tpot_ms", kSlo, &SloConfig::tpot, 1, 3600000,
                              "Wished time between tokens"));
  keys.push_back(choice("slo.on_miss", kSlo, &SloConfig::on_miss, {"serve", "refuse"},
                        "What happens to a request that cannot meet them"));
}

void add_transfer_and_link(std::vector<ConfigKey>& keys) {
  constexpr auto kTransfer = &Config::transfer;
  using T = TransferConfig;
  keys.push_back(choice("transfer.transport", kTransfer, &T::transport, {"auto", "ucx", "tcp"},
                        "How KV travels; auto takes the best that works here"));
  keys.push_back(bytes("transfer.landing_bytes", kTransfer, &T::landing_bytes, 64 << 10, 1ll << 40,
                       "Landing memory of a decode worker, whatever the prompts' lengths"));
  keys.push_back(bytes("transfer.segment_bytes", kTransfer, &T::segment_bytes, 4 << 10, 1ll << 34,
                       "The part of it that one transfer may write to"));
  keys.push_back(bytes("transfer.unit_bytes_min", kTransfer, &T::unit_bytes_min, 1, 1ll << 30,
                       "Smaller rows are gathered into messages of at least this"));
  keys.push_back(
      boolean("transfer.integrity", kTransfer, &T::integrity, "CRC-32C over every unit"));
  keys.push_back(milliseconds("transfer.grant_deadline_ms", kTransfer, &T::grant_deadline, 1,
                              3600000, "A stream waits this long for landing space"));
  keys.push_back(milliseconds("transfer.progress_deadline_ms", kTransfer, &T::progress_deadline, 1,
                              3600000, "A stream that moves nothing for this long has failed"));
  keys.push_back(integer("transfer.streams_max", kTransfer, &T::streams_max, 1, 65536,
                         "Open transfers of a worker"));
  keys.push_back(text("transfer.fault", kTransfer, &T::fault, "text",
                      "Seeded faults for tests, such as seed=7,corrupt=0.01"));

  constexpr auto kLink = &Config::link;
  using L = LinkConfig;
  keys.push_back(address("link.listen", kLink, &L::listen,
                         "A worker's link port; port 0 lets the kernel choose"));
  keys.push_back(text("link.secret_file", kLink, &L::secret_file, "a file",
                      "Shared secret; required where link.listen is not loopback"));
  keys.push_back(milliseconds("link.heartbeat_ms", kLink, &L::heartbeat, 10, 60000,
                              "Time between signs of life"));
  keys.push_back(milliseconds("link.silence_max_ms", kLink, &L::silence_max, 30, 600000,
                              "A peer that is silent for this long is dead"));
  keys.push_back(milliseconds("link.connect_deadline_ms", kLink, &L::connect_deadline, 10, 600000,
                              "For a connection and its handshake"));
  keys.push_back(bytes("link.send_queue_bytes", kLink, &L::send_queue_bytes, 64 << 10, 1ll << 32,
                       "Unsent bytes at which a peer that does not read is cut off"));
  keys.push_back(bytes("link.frame_bytes_max", kLink, &L::frame_bytes_max, 64 << 10, 1ll << 30,
                       "Longest frame that is accepted"));
  keys.push_back(integer("link.connections_max", kLink, &L::connections_max, 1, 65536,
                         "Connections that a worker accepts"));
}

void add_worker(std::vector<ConfigKey>& keys) {
  const auto wait = [&](const char* name, Milliseconds WorkerConfig::*member, int64_t max,
                        const char* help) {
    keys.push_back(
        milliseconds(std::string("worker.") + name, &Config::worker, member, 0, max, help));
  };
  using W = WorkerConfig;
  wait("role_drain_ms", &W::role_drain, 3600000,
       "At a change of role, for running requests before they go on elsewhere");
  wait("stop_quiesce_ms", &W::stop_quiesce, 60000, "At a stop, for transfers to end in order");
  wait("slow_router_ms", &W::slow_router, 3600000,
       "A router that reads no tokens for this long loses the answers that wait for it");
  wait("chunk_wait_ms", &W::chunk_wait, 60000,
       "A prompt chunk waits this long at most for answers to get ahead of their token time");
}

void add_scheduler(std::vector<ConfigKey>& keys) {
  constexpr auto kScheduler = &Config::scheduler;
  using S = SchedulerConfig;
  keys.push_back(choice("scheduler.policy", kScheduler, &S::policy,
                        {"slack", "least_backlog", "static_split", "round_robin"},
                        "How workers are chosen: slack by predicted times and targets, the others "
                        "for comparison"));
  keys.push_back(integer("scheduler.queue_max", kScheduler, &S::queue_max, 0, 1000000,
                         "Requests that wait for a worker; more are refused"));
  keys.push_back(milliseconds("scheduler.queue_deadline_ms", kScheduler, &S::queue_deadline, 1,
                              3600000, "A request waits this long at most"));
  keys.push_back(integer("scheduler.retries_max", kScheduler, &S::retries_max, 0, 100,
                         "Fresh attempts of a request after a worker is lost"));
  keys.push_back(text("scheduler.profile", kScheduler, &S::profile, "a profile of tandem plan",
                      "Costs that the workers' models start from; empty: the sim section with "
                      "that engine, else what the workers measure"));
  keys.push_back(number("scheduler.output_quantile", kScheduler, &S::output_quantile, 1,
                        "Of a tenant's output lengths, by which decode capacity is promised"));
  keys.push_back(integer("scheduler.tenants_max", kScheduler, &S::tenants_max, 1, 1000000,
                         "Tenants whose output lengths and turns are remembered"));
  keys.push_back(text_where(
      "scheduler.tenant_weights", kScheduler, &S::tenant_weights,
      "NAME=WEIGHT, ... with weights above 0 to 1000", "Shares of tenants; 1 where not named",
      [](const std::string& value) { return parse_weights(value).has_value(); }));
  keys.push_back(milliseconds("scheduler.starvation_ms", kScheduler, &S::starvation, 1, 3600000,
                              "What has waited longer gets every fourth turn of its tenant"));
  keys.push_back(bytes("scheduler.prefix_index_bytes", kScheduler, &S::prefix_index_bytes, 1 << 20,
                       1ll << 36, "Memory of the index of what workers' caches hold"));
  keys.push_back(integer("scheduler.prefix_block_tokens", kScheduler, &S::prefix_block_tokens, 1,
                         65536, "Tokens of a block of that index"));
  keys.push_back(bytes("scheduler.session_index_bytes", kScheduler, &S::session_index_bytes,
                       1 << 20, 1ll << 34, "Memory of the index of conversations' last workers"));
  keys.push_back(bytes("scheduler.handover_bytes_per_second", kScheduler,
                       &S::handover_bytes_per_second, 1 << 20, 1ll << 44,
                       "What a hand-over of KV between two workers is predicted to reach"));
  keys.push_back(integer("scheduler.unconsumed_tokens_max", kScheduler, &S::unconsumed_tokens_max,
                         128, 1 << 30,
                         "Prompt tokens on prefill workers, computed ones that have not joined a "
                         "decode batch included; a single prompt may always pass"));
}

void add_router(std::vector<ConfigKey>& keys) {
  constexpr auto kRouter = &Config::router;
  using R = RouterConfig;
  const auto count = [&](const char* name, int R::*member, int min, int max, const char* help) {
    keys.push_back(integer(std::string("router.") + name, kRouter, member, min, max, help));
  };
  const auto wait = [&](const char* name, Milliseconds R::*member, const char* help) {
    keys.push_back(milliseconds(std::string("router.") + name, kRouter, member, 1, 86400000, help));
  };
  keys.push_back(address("router.listen", kRouter, &R::listen, "Where clients connect"));
  keys.push_back(
      address("router.admin", kRouter, &R::admin, "Health, metrics, worker list; keep it private"));
  count("threads", &R::threads, 1, 256, "Threads that serve connections");
  count("tokenizer_threads", &R::tokenizer_threads, 1, 256, "Threads that tokenise long texts");
  keys.push_back(bytes("router.body_bytes_max", kRouter, &R::body_bytes_max, 1 << 10, 1ll << 32,
                       "Longest request body"));
  keys.push_back(bytes("router.header_bytes_max", kRouter, &R::header_bytes_max, 1 << 10, 1ll << 24,
                       "Longest request header"));
  count("connections_max", &R::connections_max, 1, 1000000, "Client connections");
  count("requests_max", &R::requests_max, 1, 1000000, "Requests inside the router at once");
  wait("read_deadline_ms", &R::read_deadline, "For the rest of a request after its first byte");
  wait("idle_deadline_ms", &R::idle_deadline, "For the next request on a connection");
  wait("write_deadline_ms", &R::write_deadline,
       "A client that takes no byte for this long is gone");
  wait("request_deadline_ms", &R::request_deadline, "For a whole request");
  wait("drain_deadline_ms", &R::drain_deadline, "For running requests when the router stops");
  wait("template_deadline_ms", &R::template_deadline, "For one rendering of a chat template");
  wait("keepalive_ms", &R::keepalive, "Silence on a stream before a comment line is sent");
  count("n_max", &R::n_max, 1, 1024, "Largest n of a request");
  count("prompts_max", &R::prompts_max, 1, 65536, "Most prompts of one request");
  wait("prefill_quiet_ms", &R::prefill_quiet,
       "A prompt that shows no sign of life for this long, plus ten times its prediction, is lost");
  wait("decode_quiet_ms", &R::decode_quiet, "An answer without a token for this long is lost");
  wait("sweep_ms", &R::sweep, "Time between two looks for lost ones");
  wait("role_deadline_ms", &R::role_deadline, "For a worker to carry out a change of its role");
  keys.push_back(text("router.decision_log", kRouter, &R::decision_log, "a file",
                      "Where the scheduler's inputs and decisions go, as JSON lines; empty: "
                      "nowhere"));
  keys.push_back(bytes("router.decision_log_bytes_max", kRouter, &R::decision_log_bytes_max,
                       64 << 10, 1ll << 40, "Of that file; then it is kept as FILE.1 once"));
  count("timelines_max", &R::timelines_max, 0, 1000000,
        "Requests that /v1/requests/{id} remembers");
  keys.push_back(text("router.python", kRouter, &R::python, "a program",
                      "Python with Jinja2, for chat templates; empty: the .venv of this checkout"));
}

void add_stages(std::vector<ConfigKey>& keys) {
  const auto stage = [&](const char* name, int StagesConfig::*member, const char* help) {
    keys.push_back(integer(std::string("stages.") + name + "_max", &Config::stages, member, 1,
                           10000000, help));
  };
  using S = StagesConfig;
  stage("received", &S::received, "Requests being parsed and tokenised");
  stage("tokenised", &S::tokenised, "Prompts that are not with the scheduler yet");
  stage("prefill", &S::prefill, "Prompts with prefill workers");
  stage("stream", &S::stream, "These, and computed prompts whose KV is on its way");
  stage("land", &S::land, "These, and those whose KV is not in the cache yet");
  stage("join", &S::join, "These, and those that have not joined a batch yet");
  stage("decode", &S::decode, "All these, and those that generate tokens");
  stage("write", &S::write, "Clients that have not taken what was written to them");
}

std::vector<ConfigKey> make_keys() {
  std::vector<ConfigKey> keys;
  add_model(keys);
  add_pool(keys, "prefill", &Config::prefill);
  add_pool(keys, "decode", &Config::decode);
  add_pool(keys, "coupled", &Config::coupled);
  add_pool(keys, "partitioned", &Config::partitioned);
  keys.push_back(integer("pools.partitioned.share.prefill", &Config::share, &ShareConfig::prefill,
                         1, 99, "Prefill's part of the threads and processors"));
  keys.push_back(integer("pools.partitioned.share.decode", &Config::share, &ShareConfig::decode, 1,
                         99, "Decode's part; only the proportion of the two matters"));
  add_ratio_and_slo(keys);
  add_transfer_and_link(keys);
  add_worker(keys);
  add_scheduler(keys);
  add_router(keys);
  add_stages(keys);
  keys.push_back(text_where("log.level", &Config::log, &LogConfig::level,
                            "error | warn | info | debug", "The least severe lines that are logged",
                            [](const std::string& name) {
                              LogLevel level{};
                              return log_level_from_name(name, level);
                            }));
  add_sim(keys);
  return keys;
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = make_keys();
  return keys;
}

}  // namespace tandem

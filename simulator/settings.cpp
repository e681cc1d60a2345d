#include "simulator/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "simulator/profile_file.h"

namespace tandem::simulator {
namespace {

Status bad(std::string why) { return Status(ErrorCode::kInvalidArgument, std::move(why)); }

struct Flag {
  std::string_view name;
  std::string_view value;  // Empty: a switch
  std::string_view help;
  std::function<Status(Settings&, const std::string&)> set;
};

template <class Number>
auto number(Number Settings::*member, double low, double high) {
  return [=](Settings& settings, const std::string& text) -> Status {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = std::is_floating_point_v<Number> || value == std::floor(value);
    if (error != std::errc{} || end != text.data() + text.size() || !whole)
      return bad(fmt::format("'{}' is not a {}number", text,
                             std::is_floating_point_v<Number> ? "" : "whole "));
    if (!(value >= low && value <= high))
      return bad(fmt::format("{} is out of range, allowed: {} to {}", text, low, high));
    settings.*member = static_cast<Number>(value);
    return {};
  };
}
auto text(std::string Settings::*member) {
  return [=](Settings& settings, const std::string& value) -> Status {
    settings.*member = value;
    return {};
  };
}
auto turn_on(bool Settings::*member) {
  return [=](Settings& settings, const std::string&) -> Status {
    settings.*member = true;
    return {};
  };
}

const std::vector<Flag>& flags() {
  using S = Settings;
  static const std::vector<Flag> all{
      {"--profile", "NAME", "workers' costs: a profile's name, or FILE.yaml", text(&S::profile)},
      {"--prefill-profile", "NAME", "of prefill workers, where it differs",
       text(&S::prefill_profile)},
      {"--decode-profile", "NAME", "of the other workers", text(&S::decode_profile)},
      {"--workers", "N", "default 8; a split N:M says it itself", number(&S::workers, 1, 4096)},
      {"--split", "SPLIT", "P:D, auto (also auto:P:D to start at), coupled (also coupled:CHUNK)",
       text(&S::split)},
      {"--policy", "NAME", "the scheduler's; default slack, static_split for P:D",
       text(&S::policy)},
      {"--ttft-ms", "MS", "limit of the time to first token, default 2000",
       number(&S::ttft_ms, 1, 1e7)},
      {"--tpot-ms", "MS", "limit of the time per output token, default 80",
       number(&S::tpot_ms, 1, 1e6)},
      {"--rate-scale", "X", "how many times faster a trace's requests come",
       number(&S::rate_scale, 1e-6, 1e6)},
      {"--rate", "R", "requests per second in all, instead of --rate-scale",
       number(&S::rate, 1e-6, 1e6)},
      {"--window", "S", "seconds of the trace, before scaling; default all",
       number(&S::window_s, 0, 1e9)},
      {"--seed", "N", "where in the trace to begin (0: at its first row); draws a synthetic load",
       number(&S::seed, 0, 9e15)},
      {"--net-gbytes", "GB/S", "network per worker and direction, default 20",
       number(&S::net_gbytes, 1e-3, 1e5)},
      {"--slots", "N", "sequences at once on a worker that decodes, default 512",
       number(&S::decode_slots, 1, 1e6)},
      {"--prefill-slots", "N", "prompts that a prefill worker says it takes at once, default 4",
       number(&S::prefill_slots, 1, 1e6)},
      {"--max-tokens", "N", "what clients ask for, default 2048", number(&S::max_tokens, 1, 1e7)},
      {"--prefill-batch", "TOKENS", "prompts of up to so many tokens run together, default 0: no",
       number(&S::prefill_batch_tokens, 0, 1e7)},
      {"--pull-prefixes", "", "copy cached prefixes between workers where that is faster",
       turn_on(&S::pull_prefixes)},
      {"--set", "KEY=VALUE", "any configuration key; repeatable",
       [](S& settings, const std::string& value) -> Status {
         settings.overrides.push_back(value);
         return {};
       }},
      {"--decisions", "FILE", "write every decision, as the router logs them",
       text(&S::decisions_file)},
      {"--goodput", "",
       "find the highest rate at which --attainment of the requests meet both limits",
       turn_on(&S::goodput)},
      {"--attainment", "PART", "default 0.9", number(&S::attainment, 0.01, 1)},
      {"--seeds", "N", "--goodput for so many seeds from --seed on, default 1",
       number(&S::seeds, 1, 1000)},
      {"--replay-decisions", "LOG", "judge the decisions of a log instead", text(&S::replay_file)},
      {"--help", "", "this text", turn_on(&S::help)}};
  return all;
}

// What tandem-bench means the same by.
constexpr std::string_view kForwarded[] = {"--trace",
                                           "--limit",
                                           "--num-prompts",
                                           "--duration",
                                           "--request-rate",
                                           "--arrival",
                                           "--burstiness",
                                           "--ramp",
                                           "--input-len",
                                           "--output-len",
                                           "--json",
                                           "--html",
                                           "--shared-prefix-len",
                                           "--label",
                                           "--save-detailed",
                                           "--max-input",
                                           "--max-output",
                                           "--metric-percentiles"};
constexpr std::string_view kForwardedSwitches[] = {"--save-detailed"};

template <class List>
bool contains(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

Status check(Settings& settings) {
  const auto split = parse_split(settings.split);
  if (!split.ok()) return bad("--split: " + split.status().message());
  bench::Options& load = settings.load;
  load.seed = settings.seed;
  load.goodput.ttft_ms = settings.ttft_ms;
  load.goodput.tpot_ms = settings.tpot_ms;
  if (settings.rate > 0 && load.trace.empty()) load.request_rate = settings.rate;
  if (settings.goodput && load.trace.empty())
    return bad("--goodput scales the arrivals of a --trace");
  if (settings.rate > 0 && settings.rate_scale != 1)
    return bad("--rate and --rate-scale exclude each other");
  return {};
}

}  // namespace

Result<Split> parse_split(const std::string& text) {
  Split split;
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == ':')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  const auto whole = [](const std::string& part, int low, int high, int& value) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc{} && end == part.data() + part.size() && value >= low &&
           value <= high;
  };
  const Status wrong =
      bad(fmt::format("'{}' is not P:D (both at least 1), auto, auto:P:D, coupled or coupled:CHUNK "
                      "(128 to 8192)",
                      text));
  if (parts[0] == "coupled") {
    split.kind = Split::Kind::kCoupled;
    if (parts.size() > 2) return wrong;
    if (parts.size() == 2 && !whole(parts[1], 128, 8192, split.chunk_tokens)) return wrong;
    return split;
  }
  if (parts[0] == "auto")
    parts.erase(parts.begin());
  else
    split.kind = Split::Kind::kFixed;
  if (split.kind == Split::Kind::kAuto && parts.empty()) return split;
  if (parts.size() != 2 || !whole(parts[0], 1, 4096, split.prefill) ||
      !whole(parts[1], 1, 4096, split.decode))
    return wrong;
  return split;
}

Result<Settings> parse_settings(const std::vector<std::string>& arguments) {
  Settings settings;
  std::vector<std::string> forwarded;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i];
    std::optional<std::string> value;
    if (const size_t equals = name.find('=');
        name.starts_with("--") && equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const auto flag = std::find_if(flags().begin(), flags().end(),
                                   [&](const Flag& each) { return each.name == name; });
    const bool known = flag != flags().end();
    if (!known && !contains(kForwarded, name))
      return bad(fmt::format("unknown argument {}; --help lists those there are", name));
    const bool takes = known ? !flag->value.empty() : !contains(kForwardedSwitches, name);
    if (takes && !value) {
      if (++i == arguments.size()) return bad(name + " needs a value");
      value = arguments[i];
    }
    if (!known) {
      forwarded.push_back(name);
      if (takes) forwarded.push_back(*value);
      continue;
    }
    if (Status set = flag->set(settings, value.value_or("")); !set.ok())
      return bad(fmt::format("{}: {}", name, set.message()));
  }
  auto load = bench::parse_options(forwarded);
  if (!load.ok()) return load.status();
  settings.load = std::move(*load);
  if (!settings.help) TANDEM_RETURN_IF_ERROR(check(settings));
  return settings;
}

std::string help_text() {
  std::string text =
      "usage: tandem-sim [--trace FILE | --request-rate R --num-prompts N] ...\n\n"
      "Replays a load through Tandem's scheduler against simulated workers.\n\n";
  for (const Flag& flag : flags())
    text += fmt::format("  {:<28}{}\n", fmt::format("{} {}", flag.name, flag.value), flag.help);
  text += "\n  As of tandem-bench:";
  size_t column = 21;
  for (const std::string_view name : kForwarded) {
    if (column + name.size() > 90) {
      text += "\n   ";
      column = 3;
    }
    text += fmt::format(" {}", name);
    column += name.size() + 1;
  }
  return text + "\n";
}

Result<ClusterOptions> make_cluster(const Settings& settings) {
  auto split = parse_split(settings.split);
  if (!split.ok()) return split.status();
  const bool fixed = split->kind == Split::Kind::kFixed;
  if (split->kind == Split::Kind::kAuto && split->prefill == 0) {
    if (settings.workers < 2) return bad("--workers: auto needs two or more");
    split->prefill = settings.workers / 2;
    split->decode = settings.workers - split->prefill;
  }
  const auto profile_of = [&](const std::string& own) {
    return load_profile(own.empty() ? settings.profile : own);
  };
  const auto prefill = profile_of(settings.prefill_profile);
  if (!prefill.ok()) return prefill.status();
  const auto decode = profile_of(settings.decode_profile);
  if (!decode.ok()) return decode.status();

  ClusterOptions options;
  std::vector<std::string> keys{"model.engine=sim",
                                "scheduler.policy=" + std::string(fixed ? "static_split" : "slack"),
                                fmt::format("slo.ttft_ms={}", std::lround(settings.ttft_ms)),
                                fmt::format("slo.tpot_ms={}", std::lround(settings.tpot_ms))};
  if (split->kind == Split::Kind::kAuto) keys.push_back("ratio.mode=auto");
  if (!settings.policy.empty()) keys.push_back("scheduler.policy=" + settings.policy);
  keys.insert(keys.end(), settings.overrides.begin(), settings.overrides.end());
  auto config = parse_config("", "tandem-sim", keys);
  if (!config.ok()) return config.status();
  options.config = std::move(*config);
  options.config.scheduler.prefix_block_tokens = kTraceBlockTokens;
  options.config.scheduler.queue_max = 1 << 20;
  options.config.engine.chunk_tokens = 1 << 24;  // Its prompts run whole
  options.config.scheduler.handover_bytes_per_second =
      static_cast<int64_t>(settings.net_gbytes * 1e9);
  options.config.model.context =
      static_cast<int>(std::min<int64_t>(decode->costs.kv_tokens_capacity, 1 << 24));
  // The models start from what the workers really take: simulated costs do not drift.
  options.config.scheduler.profile =
      settings.profile.ends_with(".yaml") || settings.profile.ends_with(".yml") ? ""
                                                                                : settings.profile;
  options.network_bytes_per_second = settings.net_gbytes * 1e9;
  options.max_tokens = settings.max_tokens;
  options.pull_prefixes = settings.pull_prefixes;
  const bool coupled = split->kind == Split::Kind::kCoupled;
  const int count = coupled ? settings.workers : split->prefill + split->decode;
  for (int i = 0; i < count; ++i) {
    const bool first = !coupled && i < split->prefill;
    WorkerSpec worker;
    worker.name = fmt::format("{}{}",
                              coupled ? "c"
                              : first ? "p"
                                      : "d",
                              first || coupled ? i : i - split->prefill);
    worker.role = coupled ? Role::kCoupled : first ? Role::kPrefill : Role::kDecode;
    worker.costs = first ? prefill->costs : decode->costs;
    worker.decode_slots = settings.decode_slots;
    worker.prefill_slots = settings.prefill_slots;
    worker.chunk_tokens = split->chunk_tokens;
    worker.prefill_batch_tokens = settings.prefill_batch_tokens;
    worker.block_tokens = kTraceBlockTokens;
    options.workers.push_back(std::move(worker));
  }
  return options;
}

}  // namespace tandem::simulator

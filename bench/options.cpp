#include "bench/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tandem::bench {
namespace {

using Setter = std::function<Status(Options&, const std::string&)>;

struct Flag {
  std::vector<std::string_view>
      names;               // The first is shown; the others are what other tools call it
  std::string_view value;  // Empty: a switch
  std::string_view help;
  Setter set;
};

struct FlagGroup {
  std::string_view title;
  std::vector<Flag> flags;
};

Status bad(std::string why) { return {ErrorCode::kInvalidArgument, std::move(why)}; }

template <class Number>
Result<Number> parse_number(std::string_view text, Number low, Number high) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    return bad(fmt::format("'{}' is not a number", text));
  if (!(value >= low && value <= high))
    return bad(fmt::format("{} is out of range, allowed: {} to {}", text, low, high));
  return value;
}

template <class Member, class Number>
Setter number(Member Options::*member, Number low, Number high) {
  return [=](Options& options, const std::string& text) -> Status {
    auto value = parse_number<Number>(text, low, high);
    if (!value.ok()) return value.status();
    options.*member = *value;
    return {};
  };
}

template <class Number>
Setter mixed_number(Number MixedOptions::*member, Number low, Number high) {
  return [=](Options& options, const std::string& text) -> Status {
    auto value = parse_number<Number>(text, low, high);
    if (!value.ok()) return value.status();
    options.mixed.*member = *value;
    return {};
  };
}

Setter text(std::string Options::*member) {
  return [=](Options& options, const std::string& value) -> Status {
    options.*member = value;
    return {};
  };
}

Setter list(std::vector<std::string> Options::*member) {
  return [=](Options& options, const std::string& value) -> Status {
    (options.*member).push_back(value);
    return {};
  };
}

Setter turn(bool Options::*member, bool value) {
  return [=](Options& options, const std::string&) -> Status {
    options.*member = value;
    return {};
  };
}

template <class Enum>
Setter choice(Enum Options::*member, std::vector<std::pair<std::string_view, Enum>> values) {
  return [=](Options& options, const std::string& name) -> Status {
    for (const auto& [known, value] : values) {
      if (known != name) continue;
      options.*member = value;
      return {};
    }
    std::string names;
    for (const auto& entry : values)
      names += (names.empty() ? "" : ", ") + std::string(entry.first);
    return bad(fmt::format("'{}' is unknown, allowed: {}", name, names));
  };
}

constexpr int kTokensMax = 10'000'000;

// "N" or "A-B"; the rate ramp has the same form.
template <class Number>
Result<std::pair<Number, Number>> parse_range(const std::string& text, Number low, Number high) {
  const size_t dash = text.find('-', 1);
  auto first = parse_number<Number>(text.substr(0, dash), low, high);
  if (!first.ok()) return first.status();
  if (dash == std::string::npos) return std::pair(*first, *first);
  auto second = parse_number<Number>(text.substr(dash + 1), low, high);
  if (!second.ok()) return second.status();
  return std::pair(*first, *second);
}

Setter length_range(std::optional<LengthRange> Options::*member) {
  return [=](Options& options, const std::string& text) -> Status {
    auto range = parse_range<int>(text, 1, kTokensMax);
    if (!range.ok()) return range.status();
    if (range->first > range->second) return bad("the range's end is below its start");
    options.*member = LengthRange{range->first, range->second};
    return {};
  };
}

Status set_ramp(Options& options, const std::string& text) {
  auto range = parse_range<double>(text, 1e-6, 1e6);
  if (!range.ok()) return range.status();
  options.ramp_from = range->first;
  options.ramp_to = range->second;
  return {};
}

Status set_rate(Options& options, const std::string& text) {
  if (text == "inf") return bad("use --concurrency for a closed loop, or a finite rate");
  return number(&Options::request_rate, 1e-6, 1e6)(options, text);
}

Status set_goodput(Options& options, const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return bad("limits look like ttft:200");
  auto limit = parse_number<double>(text.substr(colon + 1), 0.0, 1e9);
  if (!limit.ok()) return limit.status();
  const std::string name = text.substr(0, colon);
  if (name == "ttft")
    options.goodput.ttft_ms = *limit;
  else if (name == "tpot")
    options.goodput.tpot_ms = *limit;
  else if (name == "e2el")
    options.goodput.e2el_ms = *limit;
  else
    return bad(fmt::format("'{}' is unknown, allowed: ttft, tpot, e2el", name));
  return {};
}

Status set_percentiles(Options& options, const std::string& text) {
  options.percentiles.clear();
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    auto value = parse_number<double>(text.substr(from, comma - from), 0.0, 100.0);
    if (!value.ok()) return value.status();
    options.percentiles.push_back(*value);
    from = comma + 1;
  }
  return {};
}

Status set_extra_body(Options& options, const std::string& text) {
  if (!nlohmann::json::parse(text, nullptr, false).is_object()) return bad("not a JSON object");
  options.extra_body = text;
  return {};
}

FlagGroup server_flags() {
  return {"Server (any that speaks OpenAI's API)",
          {{{"--url", "--base-url"}, "URL", "default http://127.0.0.1:8080", text(&Options::url)},
           {{"--model"}, "NAME", "default: the first of /v1/models", text(&Options::model)},
           {{"--endpoint"},
            "KIND",
            "completions (default) or chat",
            choice<Endpoint>(&Options::endpoint,
                             {{"completions", Endpoint::kCompletions}, {"chat", Endpoint::kChat}})},
           {{"--api-key"}, "KEY", "sent as a bearer token", text(&Options::api_key)},
           {{"--header"}, "'N: V'", "one more request header; repeatable", list(&Options::headers)},
           {{"--extra-body"}, "JSON", "fields added to every request's body", set_extra_body}}};
}

FlagGroup load_flags() {
  using Kind = ArrivalPlan::Kind;
  return {"Load",
          {{{"--num-prompts"},
            "N",
            "requests to send; default 100, or no limit with --duration",
            number<std::optional<int64_t>, int64_t>(&Options::num_prompts, 1, 100'000'000)},
           {{"--duration"},
            "S",
            "send for so many seconds, then wait for what runs",
            number(&Options::duration_s, 0.001, 1e6)},
           {{"--warmup"},
            "N",
            "requests before the measured run",
            number(&Options::warmup, 0, 100'000)},
           {{"--concurrency", "--max-concurrency"},
            "N",
            "closed loop: requests at once (default 8); open loop: at most so many at once",
            number(&Options::concurrency, 1, 100'000)},
           {{"--request-rate"},
            "R",
            "open loop: requests per second, whatever the answers take",
            set_rate},
           {{"--arrival"},
            "KIND",
            "open loop: poisson (default), gamma or constant intervals",
            choice<Kind>(&Options::arrival, {{"poisson", Kind::kPoisson},
                                             {"gamma", Kind::kGamma},
                                             {"constant", Kind::kConstant}})},
           {{"--burstiness"},
            "B",
            "gamma's shape: below 1 bursts, above 1 evens out",
            number(&Options::burstiness, 1e-3, 1e6)},
           {{"--ramp"}, "A-B", "open loop: rate that grows from A to B over the run", set_ramp},
           {{"--seed"},
            "N",
            "same seed, same lengths, prompts and arrivals; default 0",
            number<uint64_t, uint64_t>(&Options::seed, 0, std::numeric_limits<uint64_t>::max())}}};
}

FlagGroup length_flags() {
  return {"Lengths in tokens",
          {{{"--input-len", "--random-input-len"},
            "N|A-B",
            "prompt length, fixed or uniform; default 256",
            length_range(&Options::input_len)},
           {{"--output-len", "--random-output-len"},
            "N|A-B",
            "output length (ignore_eos is sent); default 64",
            length_range(&Options::output_len)},
           {{"--shared-prefix-len", "--random-prefix-len"},
            "N",
            "tokens that all prompts begin with, in front of --input-len",
            number(&Options::shared_prefix_len, 0, kTokensMax)},
           {{"--mode"},
            "KIND",
            "both (default); prefill: one output token each; decode: 4-token prompts, 256 outputs",
            choice<Mode>(
                &Options::mode,
                {{"both", Mode::kBoth}, {"prefill", Mode::kPrefill}, {"decode", Mode::kDecode}})}}};
}

FlagGroup trace_flags() {
  return {"Traces (recorded arrivals and lengths)",
          {{{"--trace"},
            "FILE",
            "Mooncake .jsonl, or Azure, splitwise or BurstGPT .csv",
            text(&Options::trace)},
           {{"--speed"},
            "F",
            "replay so many times faster; default 1",
            number(&Options::speed, 1e-6, 1e6)},
           {{"--limit"},
            "N",
            "first N rows only",
            number<int64_t, int64_t>(&Options::trace_limit, 1, 1'000'000'000)},
           {{"--max-input"},
            "N",
            "cut longer prompts to N tokens",
            number(&Options::max_input, 1, kTokensMax)},
           {{"--max-output"},
            "N",
            "cut longer outputs to N tokens",
            number(&Options::max_output, 1, kTokensMax)}}};
}

FlagGroup scenario_flags() {
  return {"Scenario",
          {{{"--scenario"},
            "NAME",
            "mixed: steady streams (--input-len, --output-len) plus one long prompt now and then",
            choice<Scenario>(&Options::scenario,
                             {{"uniform", Scenario::kUniform}, {"mixed", Scenario::kMixed}})},
           {{"--streams"},
            "N",
            "steady streams; default 6",
            mixed_number(&MixedOptions::streams, 1, 100'000)},
           {{"--long-len"},
            "N",
            "tokens of the long prompt; default 700",
            mixed_number(&MixedOptions::long_tokens, 1, kTokensMax)},
           {{"--long-every"},
            "S",
            "seconds between long prompts; default 4, 0: none",
            mixed_number(&MixedOptions::long_every_s, 0.0, 1e6)},
           {{"--long-output"},
            "N",
            "output tokens of a long prompt; default 32",
            mixed_number(&MixedOptions::long_output, 1, kTokensMax)}}};
}

FlagGroup report_flags() {
  return {"Results",
          {{{"--goodput"},
            "L:MS ...",
            "count requests within limits, e.g. ttft:200 tpot:50 e2el:4000",
            set_goodput},
           {{"--metric-percentiles"}, "P,P", "default 90,99", set_percentiles},
           {{"--json", "--result-filename"},
            "FILE",
            "keys of `vllm bench serve`; - is standard output",
            text(&Options::json_file)},
           {{"--html"}, "FILE", "one self-contained report with plots", text(&Options::html_file)},
           {{"--save-detailed"},
            "",
            "arrays with every request in the JSON",
            turn(&Options::save_detailed, true)},
           {{"--label"}, "TEXT", "name of the run in reports", text(&Options::label)},
           {{"--no-progress"}, "", "no progress bar or lines", turn(&Options::progress, false)}}};
}

FlagGroup compare_flags() {
  return {"Comparing (the same load on each in turn)",
          {{{"--compare"},
            "T ...",
            "each T: a configuration for `tandem up`, url=http://..., or cmd:SHELL COMMAND; "
            "NAME@T sets its name",
            list(&Options::compare)},
           {{"--wait-url"},
            "URL",
            "where the server of a cmd: target listens; one per cmd: target",
            list(&Options::wait_urls)},
           {{"--startup-seconds"},
            "S",
            "a server must be healthy by then; default 120",
            number(&Options::startup_s, 0.1, 1e5)}}};
}

FlagGroup bound_flags() {
  return {"Bounds",
          {{{"--max-seconds"},
            "S",
            "end the run by then; unfinished requests count as failed; default 3600",
            number(&Options::max_seconds, 0.1, 1e7)},
           {{"--request-timeout"},
            "S",
            "of one request; default 600",
            number(&Options::request_timeout_s, 0.01, 1e7)},
           {{"--help", "-h"}, "", "this text", turn(&Options::help, true)}}};
}

const std::vector<FlagGroup>& flag_groups() {
  static const std::vector<FlagGroup> groups{server_flags(),  load_flags(),     length_flags(),
                                             trace_flags(),   scenario_flags(), report_flags(),
                                             compare_flags(), bound_flags()};
  return groups;
}

const Flag* find_flag(std::string_view name) {
  for (const FlagGroup& group : flag_groups())
    for (const Flag& flag : group.flags)
      if (std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end()) return &flag;
  return nullptr;
}

// These take every word up to the next flag.
bool takes_many(const Flag& flag) { return flag.value.ends_with(" ..."); }

Status check(const Options& options) {
  const bool rate = options.request_rate > 0.0 || options.ramp_to > 0.0;
  if (options.request_rate > 0.0 && options.ramp_to > 0.0)
    return bad("--ramp and --request-rate exclude each other");
  if (!options.trace.empty() && rate) return bad("a trace brings its own arrivals: use --speed");
  if (!options.trace.empty() && (options.input_len || options.output_len))
    return bad("a trace brings its own lengths: use --max-input and --max-output");
  if (options.ramp_to > 0.0 && options.duration_s > 0.0 && !options.num_prompts)
    return bad("--ramp needs --num-prompts");
  if (options.scenario == Scenario::kMixed &&
      (rate || !options.trace.empty() || options.num_prompts))
    return bad("--scenario mixed takes --streams and --duration, no rate, trace or --num-prompts");
  if (options.burstiness != 1.0 && options.arrival != ArrivalPlan::Kind::kGamma)
    return bad("--burstiness needs --arrival gamma");
  return {};
}

}  // namespace

LengthRange Options::input_range() const {
  if (input_len) return *input_len;
  return mode == Mode::kDecode          ? LengthRange{4, 4}
         : scenario == Scenario::kMixed ? LengthRange{32, 32}
                                        : LengthRange{256, 256};
}

LengthRange Options::output_range() const {
  if (mode == Mode::kPrefill) return {1, 1};
  if (output_len) return *output_len;
  return mode == Mode::kDecode || scenario == Scenario::kMixed ? LengthRange{256, 256}
                                                               : LengthRange{64, 64};
}

Result<Options> parse_options(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i];
    std::optional<std::string> value;
    if (const size_t equals = name.find('=');
        name.starts_with("--") && equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const Flag* flag = find_flag(name);
    if (flag == nullptr) return bad(fmt::format("unknown option {}; see --help", name));
    if (flag->value.empty()) {
      if (value) return bad(fmt::format("{} takes no value", name));
      TANDEM_RETURN_IF_ERROR(flag->set(options, ""));
      continue;
    }
    do {
      if (!value && i + 1 >= arguments.size()) return bad(fmt::format("{} needs a value", name));
      const std::string word = value ? *value : arguments[++i];
      value.reset();
      TANDEM_RETURN_IF_ERROR(flag->set(options, word).with_context(name));
    } while (takes_many(*flag) && i + 1 < arguments.size() && !arguments[i + 1].starts_with("-"));
  }
  if (!options.help) TANDEM_RETURN_IF_ERROR(check(options));
  return options;
}

std::string help_text() {
  std::string out =
      "tandem-bench: load generator for servers with OpenAI's API\n\n"
      "usage: tandem-bench [options]\n";
  for (const FlagGroup& group : flag_groups()) {
    out += fmt::format("\n{}\n", group.title);
    for (const Flag& flag : group.flags)
      out +=
          fmt::format("  {:<30} {}\n", fmt::format("{} {}", flag.names[0], flag.value), flag.help);
  }
  out +=
      "\nExamples\n"
      "  tandem-bench --concurrency 16 --num-prompts 200 --input-len 512 --output-len 64-128\n"
      "  tandem-bench --request-rate 4 --duration 60 --goodput ttft:500 tpot:60 --html "
      "report.html\n"
      "  tandem-bench --trace conversation_trace.jsonl --speed 2 --limit 500 --max-input 3000\n"
      "  tandem-bench --scenario mixed --duration 60 \\\n"
      "    --compare configs/local.yaml configs/coupled.yaml --html compare.html\n"
      "\nExit status: 0 when every request succeeded, 1 when any failed, 2 on wrong usage.\n";
  return out;
}

}  // namespace tandem::bench

#include "simulator/profile_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <fstream>
#include <functional>
#include <map>
#include <sstream>

namespace tandem::simulator {
namespace {

using scheduler::CostParameters;
using Setter = std::function<void(CostParameters&, double)>;

template <class Number>
Setter into(Number CostParameters::*member) {
  return [member](CostParameters& p, double value) { p.*member = static_cast<Number>(value); };
}
Setter into(scheduler::DecodeCosts CostParameters::*costs, double scheduler::DecodeCosts::*member) {
  return [=](CostParameters& p, double value) { p.*costs.*member = value; };
}

const std::map<std::string, Setter>& keys() {
  using P = CostParameters;
  using D = scheduler::DecodeCosts;
  static const std::map<std::string, Setter> all{
      {"prefill_base_ms", into(&P::prefill_base_ms)},
      {"prefill_per_token_us", into(&P::prefill_per_token_us)},
      {"prefill_per_token2_us", into(&P::prefill_per_token2_us)},
      {"decode_base_ms", into(&P::decode, &D::base_ms)},
      {"decode_per_sequence_ms", into(&P::decode, &D::per_sequence_ms)},
      {"decode_per_context_us", into(&P::decode, &D::per_context_us)},
      {"large_batch", into(&P::large_batch)},
      {"decode_large_base_ms", into(&P::decode_large, &D::base_ms)},
      {"decode_large_per_sequence_ms", into(&P::decode_large, &D::per_sequence_ms)},
      {"decode_large_per_context_us", into(&P::decode_large, &D::per_context_us)},
      {"chunk_overhead_tokens", into(&P::chunk_overhead_tokens)},
      {"layers", into(&P::layers)},
      {"kv_bytes_per_token", into(&P::kv_bytes_per_token)},
      {"kv_tokens_capacity", into(&P::kv_tokens_capacity)},
      {"gpus", into(&P::gpus)}};
  return all;
}

Status bad(std::string why) { return Status(ErrorCode::kInvalidArgument, std::move(why)); }

}  // namespace

Result<scheduler::Profile> parse_profile(const std::string& text, const std::string& name) {
  scheduler::Profile profile{.name = name, .source = "file", .costs = {}};
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) return bad(name + ": a profile is a map of numbers");
    for (const auto& entry : root) {
      const auto key = entry.first.as<std::string>();
      const int line = entry.first.Mark().line + 1;
      if (key == "source") {
        profile.source = entry.second.as<std::string>();
        continue;
      }
      const auto found = keys().find(key);
      if (found == keys().end()) {
        std::string known;
        for (const auto& [each, setter] : keys()) known += ", " + each;
        return bad(
            fmt::format("{}:{}: unknown key {}; there are: source{}", name, line, key, known));
      }
      double value = 0;
      if (!YAML::convert<double>::decode(entry.second, value))
        return bad(fmt::format("{}:{}: {} is not a number", name, line, key));
      found->second(profile.costs, value);
    }
  } catch (const YAML::Exception& error) {
    return bad(fmt::format("{}: {}", name, error.what()));
  }
  if (Status valid = profile.costs.validate(); !valid.ok())
    return bad(fmt::format("{}: {}", name, valid.message()));
  return profile;
}

Result<scheduler::Profile> load_profile(const std::string& what) {
  if (!what.ends_with(".yaml") && !what.ends_with(".yml")) return scheduler::find_profile(what);
  std::ifstream in(what);
  if (!in) return Status(ErrorCode::kNotFound, what + ": cannot be read");
  std::ostringstream text;
  text << in.rdbuf();
  return parse_profile(text.str(), what);
}

}  // namespace tandem::simulator

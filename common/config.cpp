#include "common/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "common/config_table.h"
#include "common/units.h"

namespace tandem {
namespace {

Status invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

std::string describe(const YAML::Node& node) {
  if (node.IsMap()) return "a mapping";
  if (node.IsSequence()) {
    std::string text = "[";
    for (const YAML::Node& item : node) {
      text += (text.size() > 1 ? ", " : "") + (item.IsScalar() ? item.Scalar() : "...");
    }
    return text + "]";
  }
  return node.IsScalar() ? fmt::format("\"{}\"", node.Scalar()) : "nothing";
}

// The keys right below `section` ("" for the top).
std::vector<std::string> children(const std::string& section) {
  const std::string prefix = section.empty() ? "" : section + ".";
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys()) {
    if (!key.path.starts_with(prefix)) continue;
    const std::string rest = key.path.substr(prefix.size());
    std::string name = rest.substr(0, rest.find('.'));
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

const ConfigKey* find_key(const std::string& path) {
  const auto& keys = config_keys();
  const auto at = std::ranges::find(keys, path, &ConfigKey::path);
  return at == keys.end() ? nullptr : &*at;
}

bool is_section(const std::string& path) {
  return std::ranges::any_of(
      config_keys(), [&](const ConfigKey& key) { return key.path.starts_with(path + "."); });
}

// How many characters must be put in, taken out or replaced to get from one to the other.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

// The known key that was probably meant; empty when nothing is near.
std::string nearest(const std::string& section, const std::string& name) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : children(section)) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = section.empty() ? candidate : section + "." + candidate;
    }
  }
  for (const ConfigKey& key : config_keys()) {  // The right name in the wrong section
    if (best.empty() && key.path.ends_with("." + name)) best = key.path;
  }
  return best;
}

class Reader {
 public:
  Reader(Config& config, std::string name) : config_(config), name_(std::move(name)) {}

  Status read_text(const std::string& text) {
    YAML::Node root;
    try {
      root = YAML::Load(text);
    } catch (const YAML::ParserException& error) {
      return invalid(
          fmt::format("{}:{}: not valid YAML: {}", name_, error.mark.line + 1, error.msg));
    }
    if (root.IsNull()) return {};
    if (!root.IsMap()) {
      return invalid(fmt::format("{}:{}: found {}; allowed: a mapping of {}", name_,
                                 root.Mark().line + 1, describe(root),
                                 fmt::join(children(""), ", ")));
    }
    return read_map(root, "");
  }

  Status read_override(const std::string& text) {
    const size_t equals = text.find('=');
    where_override_ = "--set " + text;
    if (equals == std::string::npos || equals == 0) {
      return invalid(fmt::format("{}: allowed: key=value", where_override_));
    }
    YAML::Node value;
    try {
      value = YAML::Load(text.substr(equals + 1));
    } catch (const YAML::ParserException& error) {
      return invalid(fmt::format("{}: not valid YAML: {}", where_override_, error.msg));
    }
    if (value.IsNull()) value = YAML::Node("");
    const std::string path = text.substr(0, equals);
    const size_t dot = path.rfind('.');
    const std::string section = dot == std::string::npos ? "" : path.substr(0, dot);
    return read_entry(path.substr(dot == std::string::npos ? 0 : dot + 1), value, section);
  }

  Status check_whole();

 private:
  Status read_map(const YAML::Node& map, const std::string& section) {
    std::set<std::string> seen;
    for (const auto& entry : map) {
      line_ = entry.first.Mark().line + 1;
      if (!entry.first.IsScalar()) {
        return invalid(
            fmt::format("{}: a key is {}; allowed: text", where(), describe(entry.first)));
      }
      const std::string name = entry.first.Scalar();
      if (!seen.insert(name).second) {
        return invalid(fmt::format("{}: key \"{}\" is given twice", where(),
                                   section.empty() ? name : section + "." + name));
      }
      TANDEM_RETURN_IF_ERROR(read_entry(name, entry.second, section));
    }
    return {};
  }

  Status read_entry(const std::string& name, const YAML::Node& node, const std::string& section) {
    const std::string path = section.empty() ? name : section + "." + name;
    if (is_section(path)) {
      if (node.IsMap()) return read_map(node, path);
      if (node.IsNull()) return {};
      if (find_key(path) == nullptr) {
        return invalid(fmt::format("{}: {}: found {}; allowed: a mapping of {}", where(), path,
                                   describe(node), fmt::join(children(path), ", ")));
      }
    }
    const ConfigKey* key = find_key(path);
    if (key == nullptr) return unknown(section, name);
    if (!key->read(config_, node)) {
      return invalid(fmt::format("{}: {}: found {}; allowed: {}", where(), path, describe(node),
                                 key->allowed));
    }
    set_at_[path] = where();
    return {};
  }

  Status unknown(const std::string& section, const std::string& name) const {
    const std::string path = section.empty() ? name : section + "." + name;
    const std::string meant = nearest(section, name);
    const std::string hint = meant.empty() ? "" : fmt::format("; did you mean \"{}\"?", meant);
    std::vector<std::string> allowed = children(section);
    std::string place = section.empty() ? "at the top" : "under " + section;
    if (allowed.empty()) {
      allowed = children("");
      place = "at the top";
    }
    return invalid(fmt::format("{}: unknown key \"{}\"{} Allowed {}: {}", where(), path,
                               hint.empty() ? "." : hint, place, fmt::join(allowed, ", ")));
  }

  std::string where() const {
    return where_override_.empty() ? fmt::format("{}:{}", name_, line_) : where_override_;
  }
  // Where `path` was set; the file's name for a default.
  std::string where_set(const std::string& path) const {
    const auto at = set_at_.find(path);
    return at == set_at_.end() ? name_ : at->second;
  }
  // `other`: the key that `path` disagrees with. The place named is that of the one that was set.
  Status conflict(const std::string& path, const std::string& found, const std::string& allowed,
                  const std::string& other = "") const {
    return invalid(fmt::format("{}: {}: found {}; allowed: {}",
                               where_set(was_set(path) || other.empty() ? path : other), path,
                               found, allowed));
  }
  bool was_set(const std::string& path) const { return set_at_.contains(path); }

  Status check_pools();
  Status apply_split();
  Status check_bounds();
  Status apply_replicas(const std::string& name, PoolConfig& pool, int replicas);

  Config& config_;
  std::string name_;
  int line_ = 1;
  std::string where_override_;                 // While --set values are read
  std::map<std::string, std::string> set_at_;  // Key to file:line
};

Status Reader::check_whole() {
  const TransferConfig& transfer = config_.transfer;
  if (transfer.segment_bytes > transfer.landing_bytes) {
    return conflict(
        "transfer.segment_bytes", format_bytes(transfer.segment_bytes),
        fmt::format("at most transfer.landing_bytes ({})", format_bytes(transfer.landing_bytes)),
        "transfer.landing_bytes");
  }
  if (config_.link.silence_max < 2 * config_.link.heartbeat) {
    return conflict(
        "link.silence_max_ms", std::to_string(config_.link.silence_max.count()),
        fmt::format("at least twice link.heartbeat_ms ({})", config_.link.heartbeat.count()),
        "link.heartbeat_ms");
  }
  const auto listen = parse_host_port(config_.router.listen);
  if (config_.router.admin == config_.router.listen && listen->port != 0) {
    return conflict("router.admin", config_.router.admin, "another address than router.listen",
                    "router.listen");
  }
  if (config_.engine.self_check_tokens > config_.model.context) {
    return conflict("engine.self_check_tokens", std::to_string(config_.engine.self_check_tokens),
                    fmt::format("at most model.context ({})", config_.model.context),
                    "model.context");
  }
  TANDEM_RETURN_IF_ERROR(check_pools());
  return {};
}

Status Reader::check_pools() {
  if (config_.ratio.mode == "split") TANDEM_RETURN_IF_ERROR(apply_split());
  TANDEM_RETURN_IF_ERROR(check_bounds());
  const auto has_any = [](const PoolConfig& pool) {
    return pool.replicas > 0 || !pool.workers.empty();
  };
  if (has_any(config_.prefill) && !has_any(config_.decode)) {
    return conflict("pools.decode.replicas", "0",
                    "at least 1 (or pools.decode.workers) where there are prefill workers: "
                    "somebody must generate the tokens");
  }
  return {};
}

// "3:5" of 8 workers: how many of each `tandem up` starts.
Status Reader::apply_split() {
  RatioConfig& ratio = config_.ratio;
  const std::string at = was_set("ratio") ? "ratio" : "ratio.mode";
  const std::string parts = fmt::format("{}:{}", ratio.prefill, ratio.decode);
  if (ratio.prefill < 1 || ratio.decode < 1) {
    return conflict(at, parts, "two parts of at least 1: no role may be left empty");
  }
  if (ratio.total == 0) ratio.total = ratio.prefill + ratio.decode;
  // The prefill workers of `total`, rounded; 0 when either role would be empty.
  const auto share = [&ratio](int total) {
    const int sum = ratio.prefill + ratio.decode;
    const int prefill = (2 * total * ratio.prefill + sum) / (2 * sum);
    return prefill < total ? prefill : 0;
  };
  const int prefill = share(ratio.total);
  if (prefill == 0) {
    int least = 2;
    while (share(least) == 0) ++least;  // Ends at the sum of the parts at the latest
    return conflict(at,
                    fmt::format("{} of {} workers, which leaves a role empty", parts, ratio.total),
                    fmt::format("a total of at least {}", least));
  }
  TANDEM_RETURN_IF_ERROR(apply_replicas("prefill", config_.prefill, prefill));
  return apply_replicas("decode", config_.decode, ratio.total - prefill);
}

// The bounds of auto must leave a place for every worker; a total without replicas starts halved.
Status Reader::check_bounds() {
  RatioConfig& ratio = config_.ratio;
  const auto ordered = [&](const char* name, int min, int max) -> Status {
    if (max == 0 || min <= max) return {};
    return conflict(fmt::format("ratio.{}.min", name), std::to_string(min),
                    fmt::format("at most ratio.{}.max ({})", name, max),
                    fmt::format("ratio.{}.max", name));
  };
  TANDEM_RETURN_IF_ERROR(ordered("prefill", ratio.prefill_min, ratio.prefill_max));
  TANDEM_RETURN_IF_ERROR(ordered("decode", ratio.decode_min, ratio.decode_max));
  if (ratio.mode != "auto" && ratio.mode != "recommend") return {};
  const int least = ratio.prefill_min + ratio.decode_min;
  if (ratio.total > 0 && least > ratio.total) {
    return conflict(
        "ratio.prefill.min", std::to_string(ratio.prefill_min),
        fmt::format("minima that add up to at most ratio.total ({}), not {}", ratio.total, least),
        "ratio.decode.min");
  }
  const bool none = config_.prefill.replicas + config_.decode.replicas + config_.coupled.replicas +
                        config_.partitioned.replicas ==
                    0;
  if (ratio.total == 0 || !none) return {};
  const int most = ratio.prefill_max > 0 ? ratio.prefill_max : ratio.total - 1;
  const int half =
      std::clamp(ratio.total / 2, ratio.prefill_min, std::max(ratio.prefill_min, most));
  TANDEM_RETURN_IF_ERROR(apply_replicas("prefill", config_.prefill, half));
  return apply_replicas("decode", config_.decode, ratio.total - half);
}

Status Reader::apply_replicas(const std::string& name, PoolConfig& pool, int replicas) {
  if (!pool.workers.empty()) return {};  // They run elsewhere, in a number of their own
  const std::string path = "pools." + name + ".replicas";
  if (was_set(path) && pool.replicas != replicas) {
    return conflict(path, std::to_string(pool.replicas),
                    fmt::format("{}, or no such key: ratio {}:{} of {} workers decides", replicas,
                                config_.ratio.prefill, config_.ratio.decode, config_.ratio.total));
  }
  pool.replicas = replicas;
  return {};
}

// A relative path that is not there from the current directory is looked for from the folders above
// `file`.
std::string resolve(const std::string& path, const std::filesystem::path& file) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (path.empty() || fs::path(path).is_absolute() || fs::exists(path, error)) return path;
  fs::path folder = fs::absolute(file, error).parent_path();
  for (; !error && !folder.empty(); folder = folder.parent_path()) {
    if (fs::exists(folder / path, error)) return (folder / path).lexically_normal().string();
    if (folder == folder.parent_path()) break;
  }
  return path;
}

}  // namespace

const PoolConfig& Config::pool(Role role) const {
  switch (role) {
    case Role::kPrefill:
      return prefill;
    case Role::kDecode:
      return decode;
    case Role::kCoupled:
      return coupled;
    case Role::kPartitioned:
      return partitioned;
  }
  return decode;
}

Result<Config> parse_config(const std::string& text, const std::string& name,
                            const std::vector<std::string>& overrides) {
  Config config;
  Reader reader(config, name);
  TANDEM_RETURN_IF_ERROR(reader.read_text(text));
  for (const std::string& entry : overrides) TANDEM_RETURN_IF_ERROR(reader.read_override(entry));
  TANDEM_RETURN_IF_ERROR(reader.check_whole());
  if (config.model.name.empty()) {
    const std::string stem = std::filesystem::path(config.model.path).stem().string();
    config.model.name = stem.empty() ? config.model.engine : stem;
  }
  return config;
}

Result<Config> load_config(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides) {
  std::ifstream in(file);
  std::stringstream text;
  if (!in || !(text << in.rdbuf())) {
    std::error_code error;
    const bool exists = std::filesystem::exists(file, error);
    const bool empty = exists && std::filesystem::is_empty(file, error) && !error;
    if (!in || !empty) {
      return Status(ErrorCode::kNotFound,
                    fmt::format("{}: {}", file.string(),
                                exists ? "cannot be read" : "there is no such file"));
    }
  }
  auto config = parse_config(text.str(), file.string(), overrides);
  if (config) {
    config->model.path = resolve(config->model.path, file);
    config->link.secret_file = resolve(config->link.secret_file, file);
  }
  return config;
}

std::string dump_config(const Config& config) {
  YAML::Node root(YAML::NodeType::Map);
  for (const ConfigKey& key : config_keys()) {
    if (!key.show) continue;
    YAML::Node at = root;
    std::stringstream path(key.path);
    std::string name;
    while (std::getline(path, name, '.')) at.reset(at[name]);
    at = key.show(config);
  }
  YAML::Emitter out;
  out << root;
  return std::string(out.c_str()) + "\n";
}

std::string config_markdown() {
  const Config defaults;
  std::string out = "| key | default | allowed | meaning |\n|---|---|---|---|\n";
  for (const ConfigKey& key : config_keys()) {
    std::string value;
    if (key.show) {
      const YAML::Node node = key.show(defaults);
      if (node.IsScalar() && !node.Scalar().empty()) value = "`" + node.Scalar() + "`";
    }
    std::string allowed = key.allowed;
    for (size_t at = 0; (at = allowed.find('|', at)) != std::string::npos; at += 2) {
      allowed.insert(at, "\\");
    }
    out += fmt::format("| `{}` | {} | {} | {} |\n", key.path, value, allowed, key.help);
  }
  return out;
}

std::optional<std::unordered_map<std::string, double>> parse_weights(const std::string& text) {
  std::unordered_map<std::string, double> weights;
  std::stringstream list(text);
  for (std::string entry; std::getline(list, entry, ',');) {
    const size_t equals = entry.rfind('=');
    if (equals == std::string::npos || equals == 0) return std::nullopt;
    const auto weight = parse_number(std::string_view(entry).substr(equals + 1));
    if (!weight || !(*weight > 0) || *weight > 1000) return std::nullopt;
    if (!weights.emplace(entry.substr(0, equals), *weight).second) return std::nullopt;
  }
  return weights;
}

Result<HostPort> parse_host_port(std::string_view text) {
  const std::string original(text);
  const auto bad = [&] { return invalid(fmt::format("\"{}\" is not host:port", original)); };
  if (text.starts_with("tcp://")) text.remove_prefix(6);
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad();
  std::string_view host = text.substr(0, colon);
  const auto port = parse_integer(text.substr(colon + 1));
  if (!port || *port < 0 || *port > 65535) return bad();
  if (host.starts_with('[') && host.ends_with(']') && host.size() > 2) {
    host = host.substr(1, host.size() - 2);
  } else if (host.empty() || host.find_first_of(":[]/ ") != std::string_view::npos) {
    return bad();
  }
  return HostPort{std::string(host), static_cast<uint16_t>(*port)};
}

}  // namespace tandem

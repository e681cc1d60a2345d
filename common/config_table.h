// The one table behind the configuration: every key with its place in Config, range and help.
// Reading, checking, dumping, `--set` and the documentation all walk it. Only config*.cpp use this.
#pragma once

#include <yaml-cpp/yaml.h>

#include <functional>
#include <string>
#include <vector>

#include "common/config.h"

namespace tandem {

struct ConfigKey {
  std::string path;     // "router.listen"
  std::string allowed;  // "1 to 256", "llama | sim"
  std::string help;
  // False when `node` is not a value that this key allows; `config` is then untouched.
  std::function<bool(Config& config, const YAML::Node& node)> read;
  // The value as read() takes it. Empty for a second spelling of another key, which is not dumped.
  std::function<YAML::Node(const Config& config)> show;
};

const std::vector<ConfigKey>& config_keys();

}  // namespace tandem

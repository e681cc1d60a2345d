// Command-line words: `--name value`, `--name=value`, flags and plain words. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/status.h"

namespace tandem::cli {

struct Arguments {
  std::map<std::string, std::vector<std::string>> options;  // "--set" to its values, in order
  std::vector<std::string> words;

  bool has(const std::string& name) const { return options.contains(name); }
  // The last value given; `fallback` without one.
  std::string value(const std::string& name, const std::string& fallback = "") const;
  std::vector<std::string> values(const std::string& name) const;
};

struct AllowedArguments {
  std::vector<std::string> with_value;  // "-c", "--set"
  std::vector<std::string> flags;       // "--json"
  size_t words_max = 0;
};

// kInvalidArgument names the word and what is allowed.
Result<Arguments> parse_arguments(const std::vector<std::string>& words,
                                  const AllowedArguments& allowed);

}  // namespace tandem::cli

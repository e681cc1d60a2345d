#include "cli/arguments.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::cli {

std::string Arguments::value(const std::string& name, const std::string& fallback) const {
  const auto at = options.find(name);
  return at == options.end() || at->second.empty() ? fallback : at->second.back();
}

std::vector<std::string> Arguments::values(const std::string& name) const {
  const auto at = options.find(name);
  return at == options.end() ? std::vector<std::string>{} : at->second;
}

Result<Arguments> parse_arguments(const std::vector<std::string>& words,
                                  const AllowedArguments& allowed) {
  const auto bad = [&](const std::string& what) {
    std::vector<std::string> names = allowed.with_value;
    names.insert(names.end(), allowed.flags.begin(), allowed.flags.end());
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{}; allowed: {}", what, fmt::join(names, ", ")));
  };
  const auto contains = [](const std::vector<std::string>& list, const std::string& word) {
    return std::ranges::find(list, word) != list.end();
  };
  Arguments parsed;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!word.starts_with('-') || word == "-") {
      if (parsed.words.size() >= allowed.words_max)
        return bad(fmt::format("unexpected \"{}\"", word));
      parsed.words.push_back(word);
      continue;
    }
    const size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const std::string name = word.substr(0, equals);
    if (contains(allowed.flags, word)) {
      parsed.options[word];
    } else if (!contains(allowed.with_value, name)) {
      return bad(fmt::format("unknown option \"{}\"", word));
    } else if (equals != std::string::npos) {
      parsed.options[name].push_back(word.substr(equals + 1));
    } else if (i + 1 < words.size()) {
      parsed.options[name].push_back(words[++i]);
    } else {
      return bad(fmt::format("{} needs a value", name));
    }
  }
  return parsed;
}

}  // namespace tandem::cli

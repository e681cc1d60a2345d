#include "bench/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

namespace tandem::bench {
namespace {

constexpr double kTokensMax = 10e6;

Status bad_line(const std::string& name, size_t line, const std::string& why) {
  return {ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", name, line, why)};
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::string_view(" \t\r\"").find(text.front()) != std::string_view::npos)
    text.remove_prefix(1);
  while (!text.empty() && std::string_view(" \t\r\"").find(text.back()) != std::string_view::npos)
    text.remove_suffix(1);
  return text;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

// "2023-11-16 18:15:46.6805900", with an optional zone that is ignored: only differences count.
std::optional<double> parse_date(std::string_view text) {
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':') return {};
  const auto part = [&](size_t from, size_t size) { return parse_number(text.substr(from, size)); };
  const auto year = part(0, 4), month = part(5, 2), day = part(8, 2);
  const auto hour = part(11, 2), minute = part(14, 2);
  const size_t seconds_end = std::min(text.find_first_not_of("0123456789.", 17), text.size());
  const auto second = part(17, seconds_end - 17);
  if (!year || !month || !day || !hour || !minute || !second) return {};
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(*year)),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok()) return {};
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(days) * 86400.0 + *hour * 3600.0 + *minute * 60.0 + *second;
}

std::vector<std::string_view> split_csv(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const size_t comma = line.find(',');
    cells.push_back(trim(line.substr(0, comma)));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

// The column called by one of `names`, whatever the case.
std::optional<size_t> find_column(const std::vector<std::string_view>& header,
                                  std::span<const std::string_view> names) {
  for (size_t i = 0; i < header.size(); ++i) {
    std::string lower(header[i]);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (std::find(names.begin(), names.end(), lower) != names.end()) return i;
  }
  return {};
}

struct RawRow {
  double at_s = 0.0;
  double input = 0.0;
  double output = 0.0;
  std::vector<uint64_t> hash_ids;
};

// Checks that hold for every format, and makes times relative to the first row.
class RowCollector {
 public:
  explicit RowCollector(const std::string& name) : name_(name) {}

  Status add(size_t line, RawRow raw) {
    if (raw.at_s < 0.0) return bad_line(name_, line, fmt::format("negative time {}", raw.at_s));
    if (!rows_.empty() && raw.at_s < last_s_) {
      return bad_line(name_, line,
                      fmt::format("time {} is before {} of line {}; sort the trace by time",
                                  raw.at_s, last_s_, last_line_));
    }
    for (const auto& [what, value] : {std::pair("input", raw.input), {"output", raw.output}}) {
      if (value < 1.0 || value > kTokensMax || value != std::floor(value)) {
        return bad_line(name_, line,
                        fmt::format("{} length {} is not a whole number of 1 to {}", what, value,
                                    static_cast<int>(kTokensMax)));
      }
    }
    if (rows_.empty()) first_s_ = raw.at_s;
    last_s_ = raw.at_s;
    last_line_ = line;
    rows_.push_back({raw.at_s - first_s_, static_cast<int>(raw.input), static_cast<int>(raw.output),
                     std::move(raw.hash_ids)});
    return {};
  }

  size_t size() const { return rows_.size(); }
  Result<std::vector<TraceRow>> take() {
    if (rows_.empty()) return Status(ErrorCode::kInvalidArgument, name_ + ": no rows");
    return std::move(rows_);
  }

 private:
  const std::string name_;
  std::vector<TraceRow> rows_;
  double first_s_ = 0.0;
  double last_s_ = 0.0;
  size_t last_line_ = 0;
};

Result<RawRow> parse_jsonl_row(const std::string& text) {
  const auto fail = [](std::string why) {
    return Status(ErrorCode::kInvalidArgument, std::move(why));
  };
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return fail("not a JSON object");
  std::array<double, 3> values{};
  constexpr std::array<const char*, 3> kFields{"timestamp", "input_length", "output_length"};
  for (size_t i = 0; i < kFields.size(); ++i) {
    const auto found = json.find(kFields[i]);
    if (found == json.end()) return fail(fmt::format("no field {}", kFields[i]));
    if (!found->is_number()) return fail(fmt::format("{} is not a number", kFields[i]));
    values[i] = found->get<double>();
  }
  RawRow row{values[0] / 1000.0, values[1], values[2], {}};
  if (const auto ids = json.find("hash_ids"); ids != json.end() && !ids->is_null()) {
    if (!ids->is_array()) return fail("hash_ids is not an array");
    for (const auto& id : *ids) {
      if (!id.is_number_integer()) return fail("hash_ids holds something that is not an integer");
      row.hash_ids.push_back(static_cast<uint64_t>(id.get<int64_t>()));
    }
  }
  return row;
}

struct CsvColumns {
  size_t time, input, output;
};

Result<CsvColumns> find_columns(std::string_view header_line) {
  static constexpr std::array<std::string_view, 3> kTime{"arrived_at", "timestamp", "arrival"};
  static constexpr std::array<std::string_view, 4> kInput{"num_prefill_tokens", "contexttokens",
                                                          "request tokens", "input_length"};
  static constexpr std::array<std::string_view, 4> kOutput{"num_decode_tokens", "generatedtokens",
                                                           "response tokens", "output_length"};
  const auto header = split_csv(header_line);
  const auto time = find_column(header, kTime), input = find_column(header, kInput),
             output = find_column(header, kOutput);
  if (time && input && output) return CsvColumns{*time, *input, *output};
  const auto names = !time ? fmt::format("{}", fmt::join(kTime, ", "))
                           : fmt::format("{}", fmt::join(!input ? kInput : kOutput, ", "));
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("missing column: needs one of {} (found: {})", names, header_line));
}

Result<RawRow> parse_csv_row(std::string_view line, const CsvColumns& columns) {
  const auto cells = split_csv(line);
  const size_t last = std::max({columns.time, columns.input, columns.output});
  if (cells.size() <= last) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{} columns, needs {}", cells.size(), last + 1));
  }
  const auto number = parse_number(cells[columns.time]);
  const auto time = number ? number : parse_date(cells[columns.time]);
  if (!time) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is neither seconds nor a date", cells[columns.time]));
  }
  const auto input = parse_number(cells[columns.input]);
  const auto output = parse_number(cells[columns.output]);
  if (!input || !output) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is not a number", cells[!input ? columns.input : columns.output]));
  }
  return RawRow{*time, *input, *output, {}};
}

}  // namespace

Result<std::vector<TraceRow>> read_trace(std::istream& in, TraceFormat format,
                                         const std::string& name, size_t limit) {
  RowCollector rows(name);
  std::optional<CsvColumns> columns;
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (trim(line).empty()) continue;
    if (format == TraceFormat::kCsv && !columns) {
      const auto found = find_columns(trim(line));
      if (!found.ok()) return bad_line(name, number, found.status().message());
      columns = *found;
      continue;
    }
    auto row = format == TraceFormat::kCsv ? parse_csv_row(line, *columns) : parse_jsonl_row(line);
    if (!row.ok()) return bad_line(name, number, row.status().message());
    TANDEM_RETURN_IF_ERROR(rows.add(number, std::move(*row)));
    if (rows.size() == limit) break;
  }
  return rows.take();
}

Result<std::vector<TraceRow>> load_trace(const std::string& file, size_t limit) {
  const bool csv = file.ends_with(".csv");
  if (!csv && !file.ends_with(".jsonl")) {
    return Status(ErrorCode::kInvalidArgument, file + ": a trace ends in .jsonl or .csv");
  }
  std::ifstream in(file);
  if (!in) return Status(ErrorCode::kNotFound, file + ": cannot be read");
  return read_trace(in, csv ? TraceFormat::kCsv : TraceFormat::kJsonl, file, limit);
}

}  // namespace tandem::bench

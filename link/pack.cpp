#include "link/pack.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

namespace tandem::link {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "packed numbers are copied as they are");

constexpr int kDepthMax = 6;
constexpr size_t kValuesMax = 65536;

// Looks at a body before anything is built from it: the parser recurses per level and makes 16
// bytes of every one.
class Guard final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(int64_t) override { return count(); }
  bool number_unsigned(uint64_t) override { return count(); }
  bool number_float(double, const std::string&) override { return count(); }
  bool string(std::string&) override { return count(); }
  bool binary(json::binary_t&) override { return count(); }
  bool start_object(size_t) override { return count() && ++depth_ <= kDepthMax; }
  bool key(std::string&) override { return count(); }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(size_t) override { return count() && ++depth_ <= kDepthMax; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

 private:
  bool count() { return ++values_ <= kValuesMax; }
  size_t values_ = 0;
  int depth_ = 0;
};

// Length of the valid UTF-8 sequence at `text`'s begin, 0 when there is none.
size_t utf8_length(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and code points above U+10FFFF.
  if (lead == 0xe0 && at(1) < 0xa0) return 0;
  if (lead == 0xed && at(1) >= 0xa0) return 0;
  if (lead == 0xf0 && at(1) < 0x90) return 0;
  if (lead == 0xf4 && at(1) >= 0x90) return 0;
  return length;
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const bool control = static_cast<uint8_t>(text[0]) < 0x20 || text[0] == 0x7f;
    if (length == 0 || control) {
      out.push_back('?');
      text.remove_prefix(1);
    } else {
      out.append(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return out;
}

}  // namespace

Result<json> unpack(std::string_view body) {
  Guard guard;
  if (!json::sax_parse(body.begin(), body.end(), &guard, json::input_format_t::msgpack)) {
    return Status(ErrorCode::kInvalidArgument, "body is not a MessagePack value within bounds");
  }
  json value = json::from_msgpack(body.begin(), body.end(), true, false);
  if (!value.is_object()) return Status(ErrorCode::kInvalidArgument, "body is not a map");
  return value;
}

std::string pack(const json& object) {
  std::string body;
  json::to_msgpack(object, nlohmann::detail::output_adapter<char>(body));
  return body;
}

json pack_bytes(std::string_view bytes) {
  return json::binary(std::vector<uint8_t>(bytes.begin(), bytes.end()));
}

template <class Number>
json pack_numbers(std::span<const Number> numbers) {
  std::vector<uint8_t> bytes(numbers.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return json::binary(std::move(bytes));
}

Fields::Fields(std::string_view body) {
  auto value = unpack(body);
  if (!value) {
    status_ = value.status();
    return;
  }
  owned_ = std::make_unique<json>(std::move(*value));
  object_ = owned_.get();
}

Fields::Fields(const json& object) : object_(&object) {
  if (!object.is_object()) fail("not a map");
}

Fields::~Fields() = default;

void Fields::fail(std::string message) {
  if (status_.ok()) status_ = Status(ErrorCode::kInvalidArgument, std::move(message));
}

const json* Fields::find(const char* key) {
  if (!status_.ok()) return nullptr;
  const auto at = object_->find(key);
  if (at != object_->end()) return &*at;
  fail("field '" + std::string(key) + "' is missing");
  return nullptr;
}

void Fields::text(const char* key, std::string& out, size_t bytes_max) {
  const json* value = find(key);
  if (!value) return;
  if (!value->is_string()) return fail("field '" + std::string(key) + "' is not text");
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > bytes_max) return fail("field '" + std::string(key) + "' is too long");
  out = printable(text);
}

void Fields::bytes(const char* key, std::string& out, size_t bytes_min, size_t bytes_max) {
  const json* value = find(key);
  if (!value) return;
  if (!value->is_binary()) return fail("field '" + std::string(key) + "' is not binary");
  const auto& binary = value->get_binary();
  if (binary.size() < bytes_min || binary.size() > bytes_max) {
    return fail("field '" + std::string(key) + "' has a wrong length");
  }
  out.assign(binary.begin(), binary.end());
}

void Fields::flag(const char* key, bool& out) {
  const json* value = find(key);
  if (!value) return;
  if (!value->is_boolean()) return fail("field '" + std::string(key) + "' is not a boolean");
  out = value->get<bool>();
}

void Fields::real(const char* key, double& out, double low, double high) {
  const json* value = find(key);
  if (!value) return;
  if (!value->is_number()) return fail("field '" + std::string(key) + "' is not a number");
  const double number = value->get<double>();
  if (!std::isfinite(number) || number < low || number > high) {
    return fail("field '" + std::string(key) + "' is out of range");
  }
  out = number;
}

void Fields::id(const char* key, uint64_t& out) {
  const json* value = find(key);
  if (!value) return;
  // The library stores a non-negative integer as signed or unsigned, as it was written.
  if (!value->is_number_integer() || (!value->is_number_unsigned() && value->get<int64_t>() < 0)) {
    return fail("field '" + std::string(key) + "' is not an unsigned integer");
  }
  out = value->get<uint64_t>();
}

int64_t Fields::integer(const char* key, int64_t low, int64_t high) {
  const json* value = find(key);
  if (!value) return low;
  bool good = value->is_number_integer();
  if (good && value->is_number_unsigned()) {
    good = value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  }
  const int64_t number = good ? value->get<int64_t>() : 0;
  if (!good || number < low || number > high) {
    fail("field '" + std::string(key) + "' is not an integer in [" + std::to_string(low) + ", " +
         std::to_string(high) + "]");
    return low;
  }
  return number;
}

template <class Number>
void Fields::numbers(const char* key, std::vector<Number>& out, size_t count_min,
                     size_t count_max) {
  const json* value = find(key);
  if (!value) return;
  if (!value->is_binary()) return fail("field '" + std::string(key) + "' is not binary");
  const auto& binary = value->get_binary();
  const size_t count = binary.size() / sizeof(Number);
  if (binary.size() % sizeof(Number) != 0 || count < count_min || count > count_max) {
    return fail("field '" + std::string(key) + "' has a wrong length");
  }
  out.resize(count);
  if (count > 0) std::memcpy(out.data(), binary.data(), binary.size());
}

const json* Fields::map(const char* key) {
  const json* value = find(key);
  if (value && !value->is_object()) {
    fail("field '" + std::string(key) + "' is not a map");
    return nullptr;
  }
  return value;
}

const json* Fields::array(const char* key, size_t count_min, size_t count_max) {
  const json* value = find(key);
  if (!value) return nullptr;
  if (!value->is_array() || value->size() < count_min || value->size() > count_max) {
    fail("field '" + std::string(key) + "' is not an array of the allowed length");
    return nullptr;
  }
  return value;
}

template json pack_numbers(std::span<const int32_t>);
template json pack_numbers(std::span<const uint32_t>);
template json pack_numbers(std::span<const int64_t>);
template json pack_numbers(std::span<const uint64_t>);
template json pack_numbers(std::span<const float>);
template void Fields::numbers(const char*, std::vector<int32_t>&, size_t, size_t);
template void Fields::numbers(const char*, std::vector<uint32_t>&, size_t, size_t);
template void Fields::numbers(const char*, std::vector<int64_t>&, size_t, size_t);
template void Fields::numbers(const char*, std::vector<uint64_t>&, size_t, size_t);
template void Fields::numbers(const char*, std::vector<float>&, size_t, size_t);

}  // namespace tandem::link

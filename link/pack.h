// Strict reading and writing of frame bodies: MessagePack maps whose fields have a type, a range
// and a longest length. Used by link/ and transfer/. Plain values, any thread.
//
//   Fields fields(body);
//   fields.text("name", hello.name, 256);
//   fields.number("slots", hello.slots, 0, 65536);
//   TANDEM_RETURN_IF_ERROR(fields.status());
//
// The first field that is missing or wrong sets the status (kInvalidArgument, naming the field);
// later reads then do nothing. Unknown fields are ignored, so that a newer peer may add some.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/status.h"
#include "common/types.h"

namespace tandem::link {

// A MessagePack map as a JSON object. Refuses anything else, nesting deeper than 6 and more than
// 65,536
// values: what a body may cost is bounded by its bytes, not by what it claims.
Result<nlohmann::json> unpack(std::string_view body);
std::string pack(const nlohmann::json& object);

// Bytes and packed little-endian numbers as MessagePack binary.
nlohmann::json pack_bytes(std::string_view bytes);
template <class Number>
nlohmann::json pack_numbers(std::span<const Number> numbers);

class Fields {
 public:
  explicit Fields(std::string_view body);
  // Reads a map inside another one. `object` must outlive this.
  explicit Fields(const nlohmann::json& object);
  ~Fields();
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  const Status& status() const { return status_; }
  void fail(std::string message);

  // Control characters and broken UTF-8 become '?': the text may go to a log or into JSON.
  void text(const char* key, std::string& out, size_t bytes_max);
  void bytes(const char* key, std::string& out, size_t bytes_min, size_t bytes_max);
  void flag(const char* key, bool& out);
  void real(const char* key, double& out, double low, double high);
  void id(const char* key, uint64_t& out);
  template <class Integer>
  void number(const char* key, Integer& out, int64_t low, int64_t high) {
    static_assert(std::is_integral_v<Integer>);
    if constexpr (sizeof(Integer) < 8) {
      high = std::min<int64_t>(high, std::numeric_limits<Integer>::max());
    }
    out = static_cast<Integer>(integer(key, low, high));
  }
  // Numbers packed by pack_numbers().
  template <class Number>
  void numbers(const char* key, std::vector<Number>& out, size_t count_min, size_t count_max);
  // The value of a map or array field; null when missing or of another type (status is set).
  const nlohmann::json* map(const char* key);
  const nlohmann::json* array(const char* key, size_t count_min, size_t count_max);

 private:
  const nlohmann::json* find(const char* key);
  int64_t integer(const char* key, int64_t low, int64_t high);

  std::unique_ptr<nlohmann::json> owned_;
  const nlohmann::json* object_ = nullptr;
  Status status_;
};

}  // namespace tandem::link

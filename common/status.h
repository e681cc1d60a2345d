// Status and Result<T>: how every module reports failure.
//
// Bad input from a user, a peer, a disk or a device is a Status. A broken promise in our own code
// is TANDEM_CHECK, which stays on in release builds and aborts. Values are immutable and free to
// copy between threads.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tandem {

enum class ErrorCode {
  kOk,
  kInvalidArgument,     // The caller sent something that can never succeed.
  kNotFound,            // The named thing does not exist.
  kUnauthenticated,     // A peer or client could not prove who it is.
  kFailedPrecondition,  // Right request, wrong state: another model, another layout, not ready.
  kResourceExhausted,   // A named limit is reached; it may succeed later.
  kUnavailable,         // The other side is gone or starting; it may succeed elsewhere.
  kDeadlineExceeded,    // A wait ended without an answer.
  kCancelled,           // Somebody who may do so asked for it to stop.
  kDataLoss,            // Bytes are not what the sender said they are.
  kInternal,            // A fault of ours.
};

// Snake-case name of `code`, as written in logs, metrics and link messages.
std::string_view error_code_name(ErrorCode code);
// The code with that name; kInternal for a name that this build does not know.
ErrorCode error_code_from_name(std::string_view name);

class [[nodiscard]] Status {
 public:
  Status() = default;  // Success.
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == ErrorCode::kOk; }
  explicit operator bool() const { return ok(); }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "invalid_argument: message", or "ok".
  std::string to_string() const;
  // The same failure with `context` and ": " in front of its message.
  Status with_context(std::string_view context) const;

  bool operator==(const Status&) const = default;

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::string message_;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& detail);

#define TANDEM_CHECK(condition, detail)                                 \
  do {                                                                  \
    if (!(condition)) [[unlikely]]                                      \
      ::tandem::check_failed(#condition, __FILE__, __LINE__, (detail)); \
  } while (false)

// A value, or why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    TANDEM_CHECK(!status_.ok(), "a Result without a value needs a failure");
  }

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }

  // Requires: ok().
  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& checked() {
    TANDEM_CHECK(value_.has_value(), status_.to_string());
    return *value_;
  }

  std::optional<T> value_;
  Status status_;
};

// Returns the failure of `expression` from the calling function.
#define TANDEM_RETURN_IF_ERROR(expression)                                    \
  do {                                                                        \
    if (::tandem::Status tandem_status_ = (expression); !tandem_status_.ok()) \
      return tandem_status_;                                                  \
  } while (false)

}  // namespace tandem

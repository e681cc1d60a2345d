#include "common/status.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace tandem {
namespace {

struct NamedCode {
  ErrorCode code;
  std::string_view name;
};

constexpr std::array kNames = {
    NamedCode{ErrorCode::kOk, "ok"},
    NamedCode{ErrorCode::kInvalidArgument, "invalid_argument"},
    NamedCode{ErrorCode::kNotFound, "not_found"},
    NamedCode{ErrorCode::kUnauthenticated, "unauthenticated"},
    NamedCode{ErrorCode::kFailedPrecondition, "failed_precondition"},
    NamedCode{ErrorCode::kResourceExhausted, "resource_exhausted"},
    NamedCode{ErrorCode::kUnavailable, "unavailable"},
    NamedCode{ErrorCode::kDeadlineExceeded, "deadline_exceeded"},
    NamedCode{ErrorCode::kCancelled, "cancelled"},
    NamedCode{ErrorCode::kDataLoss, "data_loss"},
    NamedCode{ErrorCode::kInternal, "internal"},
};

}  // namespace

std::string_view error_code_name(ErrorCode code) {
  for (const NamedCode& entry : kNames)
    if (entry.code == code) return entry.name;
  return "internal";
}

ErrorCode error_code_from_name(std::string_view name) {
  for (const NamedCode& entry : kNames)
    if (entry.name == name) return entry.code;
  return ErrorCode::kInternal;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(error_code_name(code_)) + ": " + message_;
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return {code_, std::string(context) + ": " + message_};
}

void check_failed(const char* condition, const char* file, int line, const std::string& detail) {
  std::fprintf(stderr,
               "level=critical event=check_failed condition=\"%s\" at=%s:%d detail=\"%s\"\n",
               condition, file, line, detail.c_str());
  std::abort();
}

}  // namespace tandem

#include "common/types.h"

namespace tandem {

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kPrefill:
      return "prefill";
    case Role::kDecode:
      return "decode";
    case Role::kCoupled:
      return "coupled";
    case Role::kPartitioned:
      return "partitioned";
  }
  return "unknown";
}

bool role_from_name(std::string_view name, Role& role) {
  for (Role candidate : {Role::kPrefill, Role::kDecode, Role::kCoupled, Role::kPartitioned}) {
    if (role_name(candidate) != name) continue;
    role = candidate;
    return true;
  }
  return false;
}

}  // namespace tandem

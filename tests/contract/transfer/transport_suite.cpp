#include "tests/contract/transfer/transport_suite.h"

#include <doctest/doctest.h>

#include "transfer/fault/fault_transport.h"
#include "transfer/local/local_transport.h"

namespace tandem::transfer {

std::unique_ptr<Transport> make_test_transport(const std::string& name) {
  if (const size_t plus = name.find('+'); plus != name.npos) {
    const auto spec = FaultSpec::parse(name.substr(0, plus));
    REQUIRE_MESSAGE(spec.ok(), spec.status().to_string());
    auto inner = make_test_transport(name.substr(plus + 1));
    return inner ? make_fault_transport(std::move(inner), *spec) : nullptr;
  }
  if (name == "local") return make_local_transport();
  auto transport = make_transport(name, Config{});
  if (!transport && name == "ucx") {
    MESSAGE("skipped, " << transport.status().to_string());
    return nullptr;
  }
  REQUIRE_MESSAGE(transport.ok(), transport.status().to_string());
  return *std::move(transport);
}

std::vector<std::string> test_transport_names() {
  return {"local", "tcp", "ucx", "seed=5,delay_ms=3+tcp"};
}

}  // namespace tandem::transfer

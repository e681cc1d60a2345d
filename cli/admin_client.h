// The router's admin port, as the commands use it. Calls block for a few seconds at most; any
// thread.
#pragma once

#include <string>

#include "common/status.h"

namespace tandem::cli {

class AdminClient {
 public:
  // `address`: host:port.
  explicit AdminClient(std::string address) : address_(std::move(address)) {}

  // The body of a 200. kUnavailable when nobody answers; else the router's own message.
  Result<std::string> get(const std::string& path) const;
  Result<std::string> post(const std::string& path) const;

 private:
  Result<std::string> call(bool post, const std::string& path) const;

  std::string address_;
};

}  // namespace tandem::cli

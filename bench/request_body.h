// The JSON body of a request. Everything but the prompt and the length is made once per run.
#pragma once

#include <string>

#include "bench/options.h"
#include "bench/workload.h"

namespace tandem::bench {

class RequestBody {
 public:
  // Requires: options.extra_body is a JSON object.
  RequestBody(const Options& options, const std::string& model);
  // `prompt` needs no escaping.
  std::string make(const std::string& prompt, int output_tokens) const;
  std::string path() const;

 private:
  Endpoint endpoint_;
  bool sets_length_ = true;  // False when the extra body brings its own length
  std::string head_;         // The object without its closing brace
};

}  // namespace tandem::bench

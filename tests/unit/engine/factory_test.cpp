// make_engine and make_tokenizer say no clearly.
#include <doctest/doctest.h>

#include "engine/engine.h"
#include "engine/tokenizer.h"

namespace tandem {
namespace {

TEST_CASE("an unknown engine is refused by name") {
  Config config;
  config.model.engine = "abacus";
  CHECK(make_engine(config, 1, 1).status().message().find("abacus") != std::string::npos);
  CHECK(make_tokenizer(config).status().message().find("abacus") != std::string::npos);
}

TEST_CASE("engines without slots or threads are refused") {
  Config config;
  config.model.engine = "sim";
  CHECK(make_engine(config, 0, 1).status().code() == ErrorCode::kInvalidArgument);
  CHECK(make_engine(config, 1, 0).status().code() == ErrorCode::kInvalidArgument);
  config.engine.chunk_tokens = 63;
  CHECK(make_engine(config, 1, 1).status().code() == ErrorCode::kInvalidArgument);
}

TEST_CASE("a llama engine without a usable model names the file or the build") {
  Config config;
  config.model.path = "models/missing.gguf";
  for (const Status& status :
       {make_engine(config, 1, 1).status(), make_tokenizer(config).status()}) {
    CHECK_FALSE(status.ok());
    CHECK((status.message().find("models/missing.gguf") != std::string::npos ||
           status.message().find("no llama engine") != std::string::npos));
  }
}

}  // namespace
}  // namespace tandem

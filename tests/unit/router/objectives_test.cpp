// Proves what headers ask of the scheduler, and that names of prompts' beginnings are equal exactly
// where they should be.
#include "router/objectives.h"

#include <doctest/doctest.h>

namespace tandem::router {
namespace {

using namespace std::chrono_literals;

const PrefixHasher kHasher;
constexpr size_t kBlock = 256;

openai::Parsed<Objectives> read(const Headers& headers,
                                const openai::CompletionRequest& request = {}) {
  return read_objectives(headers, request, SloConfig{}, kHasher);
}

TEST_CASE("objectives come from headers") {
  const auto asked = read({{"x-slo-ttft-ms", "250"},
                           {"x-slo-tpot-ms", "12.5"},
                           {"x-slo-on-miss", "refuse"},
                           {"x-deadline-ms", "9000"},
                           {"x-priority", "-3"},
                           {"x-tenant", "blue team"},
                           {"x-session-id", "s-1"}});
  REQUIRE(asked.ok());
  CHECK(asked->ttft_slo == 250ms);
  CHECK(asked->tpot_slo == 12500us);
  CHECK(asked->refuse_on_miss);
  CHECK(asked->deadline == 9s);
  CHECK(asked->priority == -3);
  CHECK(asked->tenant == "blue team");
  CHECK(asked->session != 0);
}

TEST_CASE("without headers the body and the configuration speak") {
  openai::CompletionRequest request;
  request.priority = int64_t{1} << 40;
  request.user = "u1";
  auto asked = read({}, request);
  REQUIRE(asked.ok());
  CHECK(asked->ttft_slo == Duration::zero());
  CHECK(asked->priority == std::numeric_limits<int>::max());
  CHECK(asked->tenant == "u1");
  CHECK(!asked->refuse_on_miss);
  CHECK(asked->session == 0);
  SloConfig strict;
  strict.on_miss = "refuse";
  CHECK(read_objectives({}, request, strict, kHasher)->refuse_on_miss);
  CHECK(!read_objectives({{"x-slo-on-miss", "serve"}}, request, strict, kHasher)->refuse_on_miss);
  request.user = std::string(5000, 'u');
  CHECK(read({}, request)->tenant.size() < 64);
}

TEST_CASE("objectives that make no sense are refused by name") {
  const std::pair<const char*, std::string> bad[] = {{"x-slo-ttft-ms", "0"},
                                                     {"x-slo-ttft-ms", "-5"},
                                                     {"x-slo-ttft-ms", "soon"},
                                                     {"x-slo-ttft-ms", ""},
                                                     {"x-slo-ttft-ms", "nan"},
                                                     {"x-slo-ttft-ms", "inf"},
                                                     {"x-slo-tpot-ms", "3600001"},
                                                     {"x-slo-tpot-ms", "1e300"},
                                                     {"x-deadline-ms", "0"},
                                                     {"x-deadline-ms", "86400001"},
                                                     {"x-priority", "1.5"},
                                                     {"x-priority", "4294967296"},
                                                     {"x-slo-on-miss", "drop"},
                                                     {"x-tenant", ""},
                                                     {"x-tenant", std::string(129, 'a')},
                                                     {"x-tenant", "a\tb"},
                                                     {"x-session-id", "\xff"}};
  for (const auto& [name, value] : bad) {
    CAPTURE(name);
    CAPTURE(value);
    const auto asked = read({{name, value}});
    REQUIRE(!asked.ok());
    CHECK(asked.error().status == 400);
    CHECK(asked.error().param == name);
    CHECK(asked.error().code == "invalid_value");
  }
}

TEST_CASE("a conversation is known by its id, its cache key or its opening") {
  openai::CompletionRequest chat;
  chat.messages = R"([{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}])";
  chat.opening_bytes = 32;
  const uint64_t opening = read({}, chat)->session;
  CHECK(opening != 0);
  openai::CompletionRequest later = chat;
  later.messages += "more";
  CHECK(read({}, later)->session == opening);
  CHECK(read({{"x-tenant", "other"}}, chat)->session != opening);
  openai::CompletionRequest keyed = chat;
  keyed.prompt_cache_key = "k";
  CHECK(read({}, keyed)->session != opening);
  CHECK(read({{"x-session-id", "a"}}, chat)->session == read({{"x-session-id", "a"}})->session);
  CHECK(read({{"x-session-id", "a"}})->session != read({{"x-session-id", "b"}})->session);
}

TEST_CASE("blocks agree as far as prompts do, within one tenant") {
  std::vector<TokenId> tokens(3 * kBlock + 17, 5);
  const auto first = kHasher.blocks(1, tokens, kBlock);
  REQUIRE(first.size() == 3);
  CHECK(first[0] != first[1]);
  CHECK(kHasher.blocks(1, tokens, kBlock) == first);
  tokens[kBlock] = 6;
  const auto second = kHasher.blocks(1, tokens, kBlock);
  CHECK(second[0] == first[0]);
  CHECK(second[1] != first[1]);
  CHECK(second[2] != first[2]);  // Chained
  CHECK(kHasher.blocks(2, tokens, kBlock)[0] != first[0]);
  CHECK(PrefixHasher().blocks(1, tokens, kBlock)[0] != first[0]);
  CHECK(kHasher.blocks(1, {}, kBlock).empty());
  openai::CompletionRequest salted;
  salted.cache_salt = "s";
  CHECK(read({})->cache_root != read({}, salted)->cache_root);
  CHECK(read({})->cache_root != read({{"x-tenant", "t"}})->cache_root);
}

}  // namespace
}  // namespace tandem::router

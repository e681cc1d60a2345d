// Every message survives a round trip, and no mutilation of one crashes its decoder.
#include <doctest/doctest.h>

#include <random>

#include "common/random.h"
#include "transfer/stream/stream_messages.h"
#include "transfer/stream/unit_codec.h"

namespace tandem::transfer {
namespace {

template <class Message>
void survive_mutilation(const std::string& encoded, std::mt19937_64& random) {
  for (size_t length = 0; length < encoded.size(); ++length) {
    CHECK(!Message::decode(std::string_view(encoded).substr(0, length)).ok());
  }
  for (int round = 0; round < 2000; ++round) {
    std::string spoiled = encoded;
    for (uint64_t change = 0; change <= random() % 3; ++change) {
      spoiled[random() % spoiled.size()] = char(random());
    }
    static_cast<void>(Message::decode(spoiled));  // Any outcome but a crash
  }
}

}  // namespace

TEST_CASE("messages round-trip and mutilated ones are refused") {
  const uint64_t seed = seed_from_environment();
  CAPTURE(seed);
  std::mt19937_64 random(seed);

  SUBCASE("LANDED") {
    const Landed landed{
        {5}, 6, {{1, 2, 3, 4, 5, 6, 7, KvPart::kValue}, {8, 9, 10, 11, 12, 13, 14}}};
    const auto decoded = Landed::decode(landed.encode());
    REQUIRE(decoded.ok());
    CHECK(decoded->transfer == landed.transfer);
    CHECK(decoded->key == landed.key);
    CHECK(decoded->units == landed.units);
    survive_mutilation<Landed>(landed.encode(), random);
  }
  SUBCASE("CREDIT") {
    const auto decoded = Credit::decode(Credit{{1}, UINT64_MAX, 3}.encode());
    REQUIRE(decoded.ok());
    CHECK(decoded->key == UINT64_MAX);
    CHECK(decoded->consumed == 3);
    survive_mutilation<Credit>(Credit{{1}, 2, 3}.encode(), random);
    CHECK(!Landed::decode(Credit{{1}, 2, 3}.encode()).ok());
  }
  SUBCASE("OPEN") {
    OpenMessage open;
    open.transfer = {UINT64_MAX};
    open.token = std::string("\0\xff token", 8);
    open.layout_digest = "abc";
    open.tokens = 77;
    open.integrity = false;
    open.process = {"host", 12, 345};
    open.offers = {{"ucx", std::string("\0addr", 5)}, {"tcp", "x"}};
    const auto decoded = OpenMessage::decode(open.encode());
    REQUIRE(decoded.ok());
    CHECK(decoded->transfer == open.transfer);
    CHECK(decoded->token == open.token);
    CHECK(decoded->tokens == 77);
    CHECK(!decoded->integrity);
    CHECK(decoded->process.started == 345);
    REQUIRE(decoded->offers.size() == 2);
    CHECK(decoded->offers[0].address == open.offers[0].address);
    survive_mutilation<OpenMessage>(open.encode(), random);
  }
  SUBCASE("GRANTED") {
    const GrantedMessage granted{{1}, 2, "digest", "tcp", "address", "descriptor", 1 << 20};
    const auto decoded = GrantedMessage::decode(granted.encode());
    REQUIRE(decoded.ok());
    CHECK(decoded->descriptor == "descriptor");
    CHECK(decoded->bytes == 1 << 20);
    survive_mutilation<GrantedMessage>(granted.encode(), random);
  }
  SUBCASE("SEAL") {
    SealMessage seal{{1}, 2, 3, {3, 3}, {30, 30}, {}};
    seal.first.push_back({.token = 9, .finish = FinishReason::kEndOfText, .logprob = -1.5F});
    const auto decoded = SealMessage::decode(seal.encode());
    REQUIRE(decoded.ok());
    CHECK(decoded->rows == seal.rows);
    REQUIRE(decoded->first.size() == 1);
    CHECK(decoded->first[0].token == 9);
    CHECK(decoded->first[0].finish == FinishReason::kEndOfText);
    survive_mutilation<SealMessage>(seal.encode(), random);
  }
  SUBCASE("DENIED and ABORT") {
    const auto decoded =
        RefusalMessage::decode(RefusalMessage{{4}, Status(ErrorCode::kDataLoss, "why")}.encode());
    REQUIRE(decoded.ok());
    CHECK(decoded->reason == Status(ErrorCode::kDataLoss, "why"));
    // Whatever a peer says, a refusal is a failure.
    CHECK(!RefusalMessage::decode(RefusalMessage{{4}, Status()}.encode())->reason.ok());
  }
  SUBCASE("DONE and QUIESCED") {
    const auto decoded = EndMessage::decode(EndMessage{{4}, 5, false}.encode());
    REQUIRE(decoded.ok());
    CHECK(decoded->key == 5);
    CHECK(!decoded->clean);
  }
}

}  // namespace tandem::transfer

// What routers and workers say survives encoding, and nothing that a peer could send instead
// crashes, allocates without bound or is taken for something else: truncations, single-byte
// changes, random bytes, deep nesting, lying lengths, wrong types and values out of range.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/random.h"
#include "link/messages.h"
#include "link/pack.h"

using namespace tandem;
using namespace tandem::link;

namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  uint64_t below(uint64_t bound) { return counter_random(seed_, next_++) % bound; }

 private:
  uint64_t seed_;
  uint64_t next_ = 0;
};

Leg example_leg() {
  Leg leg;
  leg.transfer.value = 0xfedcba9876543210ull;
  leg.request = "req-1";
  leg.tokens = {1, 5, 31999, 0};
  leg.prompt_count = 4;
  leg.choices = 2;
  leg.seeds = {7, ~0ull};
  leg.sampling.temperature = 0.7;
  leg.sampling.logit_bias = {{5, -1.5f}, {9, 100.0f}};
  leg.sampling.stop_tokens = {2, 3};
  leg.sampling.logprobs = 5;
  leg.sampling.min_tokens = 3;
  leg.sampling.ignore_eos = true;
  leg.max_tokens = 100;
  leg.deadline_ms = 60000;
  leg.tpot_slo_us = 50000;
  return leg;
}

Hello example_hello() {
  Hello hello;
  hello.kind = "worker";
  hello.name = "p0";
  hello.build = "libllama";
  hello.epoch.value = 1ull << 63;
  hello.nonce = std::string(16, '\xff');
  hello.model = "smol";
  hello.role = Role::kPrefill;
  hello.listen = "127.0.0.1:7001";
  hello.slots = 4;
  hello.kv_tokens = 16384;
  hello.transports = {"ucx", "tcp"};
  return hello;
}

SampledToken example_token() {
  SampledToken token;
  token.token = 42;
  token.finish = FinishReason::kStopToken;
  token.logprob = -0.25f;
  token.top = {{42, -0.25f}, {7, -3.5f}};
  return token;
}

// Every body, and a function that decodes it and says whether it was taken.
struct Example {
  const char* name;
  std::string body;
  bool (*decodes)(std::string_view);
};

template <class Message>
bool decodes(std::string_view body) {
  return Message::decode(body).ok();
}

std::vector<Example> examples() {
  Load load;
  load.counters = {{"tandem_decode_tokens_total", 12.0}, {"x{a=\"b\"}", 0.5}};
  load.kv_tokens_capacity = 4096;
  load.samples = {{0, 256, 0, 0, 80.5}, {0, 0, 16, 4096, 12}};
  PrefillCommand prefill{example_leg(), "127.0.0.1:7002", "d0", Epoch{9}, std::string(16, 't')};
  DecodeCommand decode{example_leg(), false, std::string(16, 't')};
  PrefillDone done;
  done.transfer.value = 3;
  done.first = {example_token(), {}};
  LegEvent event;
  event.transfer.value = 3;
  event.name = "kv_last";
  event.landed = {{1, 100}, {2, 200}};
  Tokens tokens;
  tokens.entries = {{TransferId{3}, 1, true, example_token()}, {TransferId{4}, 0, false, {}}};
  return {{"hello", example_hello().encode(), decodes<Hello>},
          {"load", load.encode(), decodes<Load>},
          {"prefill", prefill.encode(), decodes<PrefillCommand>},
          {"decode", decode.encode(), decodes<DecodeCommand>},
          {"cancel", CancelCommand{TransferId{5}, 1, "stop"}.encode(), decodes<CancelCommand>},
          {"control", ControlCommand{"role", Role::kPrefill}.encode(), decodes<ControlCommand>},
          {"prefill_done", done.encode(), decodes<PrefillDone>},
          {"leg_failed", LegFailed{TransferId{5}, ErrorCode::kDataLoss, "crc", true}.encode(),
           decodes<LegFailed>},
          {"leg_event", event.encode(), decodes<LegEvent>},
          {"tokens", tokens.encode(), decodes<Tokens>}};
}

}  // namespace

TEST_CASE("a hello survives encoding") {
  const Hello sent = example_hello();
  const auto got = Hello::decode(sent.encode());
  REQUIRE(got.ok());
  CHECK(got->name == sent.name);
  CHECK(got->epoch == sent.epoch);
  CHECK(got->nonce == sent.nonce);
  CHECK(got->role == Role::kPrefill);
  CHECK(got->kv_tokens == sent.kv_tokens);
  CHECK(got->transports == sent.transports);
}

TEST_CASE("a leg survives encoding in both commands") {
  const PrefillCommand sent{example_leg(), "127.0.0.1:7002", "d0", Epoch{9},
                            std::string("\0\1\2\3\4\5\6\7\0\1\2\3\4\5\6\xff", 16)};
  const auto got = PrefillCommand::decode(sent.encode());
  REQUIRE(got.ok());
  CHECK(got->token == sent.token);
  CHECK(got->decode_listen == sent.decode_listen);
  CHECK(got->decode_epoch == sent.decode_epoch);
  const Leg& leg = got->leg;
  CHECK(leg.transfer == sent.leg.transfer);
  CHECK(leg.tokens == sent.leg.tokens);
  CHECK(leg.seeds == sent.leg.seeds);
  CHECK(leg.sampling == sent.leg.sampling);
  CHECK(leg.max_tokens == 100);
  CHECK(leg.deadline_ms == 60000);
  CHECK(leg.tpot_slo_us == 50000);
  const auto decode = DecodeCommand::decode(DecodeCommand{sent.leg, true, ""}.encode());
  REQUIRE(decode.ok());
  CHECK(decode->local);
  CHECK(decode->leg.tokens == sent.leg.tokens);
}

TEST_CASE("tokens, ends and events survive encoding") {
  Tokens tokens;
  tokens.entries = {{TransferId{3}, 255, true, example_token()}, {TransferId{4}, 0, false, {}}};
  const auto got = Tokens::decode(tokens.encode());
  REQUIRE(got.ok());
  REQUIRE(got->entries.size() == 2);
  CHECK(got->entries[0].choice == 255);
  CHECK(got->entries[0].sampled.finish == FinishReason::kStopToken);
  CHECK(got->entries[0].sampled.logprob == -0.25f);
  CHECK(got->entries[0].sampled.top == example_token().top);
  CHECK_FALSE(got->entries[1].has_logprob);

  PrefillDone done;
  done.transfer.value = 3;
  done.first = {example_token()};
  done.computed_tokens = 77;
  const auto ended = PrefillDone::decode(done.encode());
  REQUIRE(ended.ok());
  CHECK(ended->first[0].top == example_token().top);
  CHECK(ended->computed_tokens == 77);

  LegEvent event{TransferId{3}, "kv_last", 5, 6, {{1, 100}, {2, 200}}};
  const auto seen = LegEvent::decode(event.encode());
  REQUIRE(seen.ok());
  CHECK(seen->landed == event.landed);

  const auto failed =
      LegFailed::decode(LegFailed{TransferId{5}, ErrorCode::kDataLoss, "crc", false}.encode());
  REQUIRE(failed.ok());
  CHECK(failed->code == ErrorCode::kDataLoss);
  CHECK_FALSE(failed->retryable);

  Load load;
  load.counters = {{"x{a=\"b\"}", 0.5}};
  load.decode_step_ms = 12.5;
  const auto pushed = Load::decode(load.encode());
  REQUIRE(pushed.ok());
  CHECK(pushed->counters == load.counters);
  CHECK(pushed->decode_step_ms == 12.5);
}

TEST_CASE("samples and changes of role survive encoding, and too many samples are not sent") {
  Load load;
  load.role = Role::kPartitioned;
  load.switching_to = "prefill";
  load.role_error = "no memory";
  load.slots = 4;
  load.samples.assign(kSamplesMax + 1, {512, 256, 3, 1ll << 40, 0.25});
  const auto got = Load::decode(load.encode());
  REQUIRE(got.ok());
  CHECK(got->role == Role::kPartitioned);
  CHECK(got->switching_to == "prefill");
  CHECK(got->role_error == "no memory");
  CHECK(got->slots == 4);
  REQUIRE(got->samples.size() == kSamplesMax);
  CHECK(got->samples[0] == load.samples[0]);

  const auto command = ControlCommand::decode(ControlCommand{"role", Role::kCoupled}.encode());
  REQUIRE(command.ok());
  CHECK(command->action == "role");
  CHECK(command->role == Role::kCoupled);
}

TEST_CASE("a sample that is no measurement is refused") {
  const nlohmann::json load = nlohmann::json::from_msgpack(Load{}.encode());
  const auto refused = [&](nlohmann::json samples) {
    nlohmann::json changed = load;
    changed["samples"] = std::move(samples);
    CHECK_FALSE(Load::decode(pack(changed)).ok());
  };
  const auto array = [](auto... values) { return nlohmann::json::array({values...}); };
  refused(array(array(0, 256, 0, 0, std::nan(""))));
  refused(array(array(0, 256, 0, 0, INFINITY)));
  refused(array(array(0, 256, 0, 0, -1.0)));
  refused(array(array(0, 256, 0, 0, 1e7)));
  refused(array(array(0, -256, 0, 0, 1.0)));
  refused(array(array(1ll << 31, 256, 0, 0, 1.0)));
  refused(array(array(0, 256, 0, 1.0)));
  refused(array("sample"));
  refused(nlohmann::json(std::vector<nlohmann::json>(kSamplesMax + 1, array(0, 1, 0, 0, 1.0))));
  nlohmann::json changed = load;
  changed["switching_to"] = "king";
  CHECK_FALSE(Load::decode(pack(changed)).ok());
}

TEST_CASE("every truncation of every body is refused") {
  for (const Example& example : examples()) {
    CAPTURE(example.name);
    CHECK(example.decodes(example.body));
    for (size_t length = 0; length < example.body.size(); ++length) {
      CHECK_FALSE(example.decodes(std::string_view(example.body).substr(0, length)));
    }
    CHECK_FALSE(example.decodes(example.body + "x"));
  }
}

TEST_CASE("changed and random bytes never crash a decoder") {
  const uint64_t seed = seed_from_environment();
  MESSAGE("TANDEM_SEED=" << seed);
  Draw draw(seed);
  for (const Example& example : examples()) {
    for (int round = 0; round < 3000; ++round) {
      std::string body = example.body;
      const uint64_t changes = 1 + draw.below(4);
      for (uint64_t i = 0; i < changes; ++i) {
        body[draw.below(body.size())] = static_cast<char>(draw.below(256));
      }
      static_cast<void>(example.decodes(body));
      std::string noise(draw.below(64), '\0');
      for (char& byte : noise) byte = static_cast<char>(draw.below(256));
      static_cast<void>(example.decodes(noise));
    }
  }
}

TEST_CASE("nesting, counts and lengths that lie are refused before anything is built") {
  const std::string deep(1 << 22, '\x91');
  CHECK_FALSE(unpack(deep).ok());
  std::string many("\xdd\x00\x10\x00\x00", 5);  // An array of a million nils
  many.append(1 << 20, '\xc0');
  CHECK_FALSE(unpack(many).ok());
  CHECK_FALSE(unpack(std::string("\xdf\xff\xff\xff\xff", 5)).ok());  // A map of 4 billion
  CHECK_FALSE(unpack(std::string("\xc6\xff\xff\xff\xff", 5)).ok());  // 4 GB of binary
  CHECK_FALSE(unpack("").ok());
  CHECK_FALSE(unpack("\xc0").ok());
}

TEST_CASE("values of the wrong type or out of range name the field") {
  nlohmann::json object = nlohmann::json::from_msgpack(example_hello().encode());
  const auto refused = [&](const char* key, nlohmann::json value) {
    nlohmann::json changed = object;
    changed[key] = std::move(value);
    const auto got = Hello::decode(pack(changed));
    REQUIRE_FALSE(got.ok());
    CHECK(got.status().code() == ErrorCode::kInvalidArgument);
    CHECK(got.status().message().find(key) != std::string::npos);
  };
  refused("slots", -1);
  refused("slots", 1e3);
  refused("slots", ~0ull);
  refused("name", 5);
  refused("name", std::string(300, 'x'));
  refused("epoch", -5);
  refused("role", "king");
  refused("kind", "client");
  refused("nonce", "text");
  refused("transports", nlohmann::json::array({1}));
  refused("exact_batch_max", 0);
  object.erase("listen");
  CHECK_FALSE(Hello::decode(pack(object)).ok());
}

TEST_CASE("a leg that contradicts itself is refused") {
  const auto refused = [](const std::function<void(Leg&)>& change) {
    DecodeCommand command{example_leg(), true, ""};
    change(command.leg);
    CHECK_FALSE(DecodeCommand::decode(command.encode()).ok());
  };
  refused([](Leg& leg) { leg.tokens.clear(); });
  refused([](Leg& leg) { leg.prompt_count = 5; });
  refused([](Leg& leg) { leg.prompt_count = 0; });
  refused([](Leg& leg) { leg.prompt_count = 3; });  // Emitted tokens with two choices
  refused([](Leg& leg) { leg.seeds.pop_back(); });
  refused([](Leg& leg) { leg.choices = 256; });
  refused([](Leg& leg) { leg.tokens[1] = -1; });
  refused([](Leg& leg) { leg.max_tokens = 0; });
  refused([](Leg& leg) { leg.sampling.top_p = 1.5; });
  refused([](Leg& leg) { leg.sampling.temperature = std::nan(""); });
  refused([](Leg& leg) { leg.sampling.temperature = INFINITY; });
  refused([](Leg& leg) { leg.sampling.logit_bias[0].second = INFINITY; });
  refused([](Leg& leg) { leg.sampling.logprobs = 21; });
  refused([](Leg& leg) {
    leg.choices = 1;
    leg.seeds.resize(1);
    leg.prompt_count = 2;
    leg.max_tokens = 2;  // Both already emitted
  });
  CHECK_FALSE(DecodeCommand::decode(DecodeCommand{example_leg(), false, "short"}.encode()).ok());
}

TEST_CASE("text from a peer is fit for logs and JSON") {
  CancelCommand command{TransferId{1}, -1, "a\nb\xff\xc3\xa4\xed\xa0\x80"};
  const auto got = CancelCommand::decode(command.encode());
  REQUIRE(got.ok());
  CHECK(got->reason == "a?b?\xc3\xa4???");
}

TEST_CASE("frame headers say what is wrong with them") {
  const std::string frame = encode_frame(FrameKind::kTokens, "abc");
  CHECK(frame.size() == kFrameHeaderBytes + 3);
  const auto header = decode_header(frame.substr(0, kFrameHeaderBytes), 1024);
  REQUIRE(header.ok());
  CHECK(header->kind == FrameKind::kTokens);
  CHECK(header->body_bytes == 3);
  CHECK_FALSE(decode_header(std::string("\0\0\0\0\1", 5), 1024).ok());
  CHECK_FALSE(decode_header(std::string("\1\4\0\0\1", 5), 1024).ok());
  CHECK_FALSE(decode_header(std::string("\xff\xff\xff\xff\1", 5), 1024).ok());
  CHECK_FALSE(decode_header(std::string("\1\0\0\0\0", 5), 1024).ok());
  CHECK_FALSE(decode_header(std::string("\1\0\0\0\x63", 5), 1024).ok());
}

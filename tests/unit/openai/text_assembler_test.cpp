// What reaches the client is the same however tokens cut the text, never splits a code point and
// never repeats or loses a byte.
#include "router/openai/text_assembler.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "common/random.h"
#include "tests/unit/openai/fake_tokenizer.h"

namespace tandem::openai {
namespace {

SampledToken token(TokenId id, FinishReason finish = FinishReason::kNone) {
  SampledToken sampled;
  sampled.token = id;
  sampled.finish = finish;
  return sampled;
}

AssemblerOptions with_stop(std::vector<std::string> stop) {
  AssemblerOptions options;
  options.stop = std::move(stop);
  return options;
}

// Pushes pieces 0, 1, ... of the tokenizer in order, then the end, and joins all deltas.
TextDelta run(const std::vector<std::string>& pieces, AssemblerOptions options,
              FinishReason last = FinishReason::kEndOfText,
              std::vector<std::string>* texts = nullptr) {
  const FakeTokenizer tokenizer(pieces);
  TextAssembler assembler(tokenizer, std::move(options));
  TextDelta all;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool length = last == FinishReason::kLength && i + 1 == pieces.size();
    TextDelta delta = assembler.push(token(tokenizer.id(i), length ? last : FinishReason::kNone));
    if (texts != nullptr) texts->push_back(delta.text);
    all.append(std::move(delta));
  }
  if (last != FinishReason::kLength) {
    TextDelta delta = assembler.push(token(tokenizer.end_id(), last));
    if (texts != nullptr) texts->push_back(delta.text);
    all.append(std::move(delta));
  }
  CHECK(assembler.finished());
  CHECK(assembler.push(token(tokenizer.id(0))).empty());
  return all;
}

TEST_CASE("text without stop strings leaves with its token") {
  std::vector<std::string> texts;
  const TextDelta all = run({"Hel", "lo", " world"}, {}, FinishReason::kEndOfText, &texts);
  CHECK(texts == std::vector<std::string>{"Hel", "lo", " world", ""});
  CHECK(all.text == "Hello world");
  CHECK(all.finish == Finish::kStop);
  CHECK(std::holds_alternative<std::monostate>(all.stop_reason));
}

TEST_CASE("an emoji spread over four tokens leaves whole") {
  std::vector<std::string> texts;
  run({"\xF0", "\x9F", "\x98", "\x80"}, {}, FinishReason::kLength, &texts);
  CHECK(texts == std::vector<std::string>{"", "", "", "\xF0\x9F\x98\x80"});
}

TEST_CASE("an unfinished code point becomes a replacement character at the end") {
  CHECK(run({"a", "\xE4\xB8"}, {}).text == "a\xEF\xBF\xBD");
  CHECK(run({"a", "\xE4\xB8"}, {}, FinishReason::kLength).text == "a\xEF\xBF\xBD");
}

TEST_CASE("a stop string over several tokens ends the text before it (llama.cpp 11538)") {
  const TextDelta all = run({"one ", "<", "st", "op", "> two"}, with_stop({"<stop>"}));
  CHECK(all.text == "one ");
  CHECK(all.finish == Finish::kStop);
  CHECK(std::get<std::string>(all.stop_reason) == "<stop>");
}

TEST_CASE("only what may still become a stop string waits") {
  std::vector<std::string> texts;
  run({"abc<", "s", "x", "<st"}, with_stop({"<stop>"}), FinishReason::kEndOfText, &texts);
  CHECK(texts == std::vector<std::string>{"abc", "", "<sx", "", "<st"});  // llama.cpp 9867, 15007
}

TEST_CASE("the stop string that ends first wins, and of two that end together the longer one") {
  CHECK(run({"xxabcd"}, with_stop({"abcd", "bc"})).text == "xxa");
  CHECK(run({"xxabc"}, with_stop({"bc", "abc"})).text == "xx");
  CHECK(run({"xxabc"}, with_stop({"abc", "bc"})).text == "xx");
}

TEST_CASE("include_stop keeps the stop string and drops what follows it") {
  AssemblerOptions options = with_stop({"STOP"});
  options.include_stop = true;
  CHECK(run({"a ST", "OP b"}, options).text == "a STOP");
}

TEST_CASE("include_stop keeps the text of an end token") {
  AssemblerOptions options;
  options.include_stop = true;
  options.skip_special = false;
  CHECK(run({"a"}, options).text == "a<|end|>");
}

TEST_CASE("a stop string that is complete before min_tokens is text like any other") {
  AssemblerOptions options = with_stop({"."});
  options.min_tokens = 3;
  CHECK(run({"a.", "b.", "c.", "d."}, options).text == "a.b.c");
  options.min_tokens = 10;
  CHECK(run({"a.", "b."}, options).text == "a.b.");
}

TEST_CASE("a stop string wins over the length limit met by the same token") {
  const TextDelta all = run({"a", "b."}, with_stop({"."}), FinishReason::kLength);
  CHECK(all.finish == Finish::kStop);
  CHECK(all.text == "ab");
}

TEST_CASE("a stop token is named, an end token is not") {
  const FakeTokenizer tokenizer({"a", "!"});
  TextAssembler assembler(tokenizer, {});
  assembler.push(token(tokenizer.id(0)));
  const TextDelta delta = assembler.push(token(tokenizer.id(1), FinishReason::kStopToken));
  CHECK(delta.text.empty());
  CHECK(std::get<TokenId>(delta.stop_reason) == tokenizer.id(1));
  CHECK(assembler.token_count() == 2);
  CHECK_FALSE(assembler.ended_by_text());
}

TEST_CASE("max_tokens ends the text even if no worker says so") {
  const FakeTokenizer tokenizer({"a", "b"});
  AssemblerOptions options;
  options.max_tokens = 2;
  TextAssembler assembler(tokenizer, options);
  CHECK_FALSE(assembler.push(token(tokenizer.id(0))).finished());
  const TextDelta delta = assembler.push(token(tokenizer.id(1)));
  CHECK(delta.finish == Finish::kLength);
  CHECK(delta.text == "b");
}

TEST_CASE("only a stop string that the worker cannot know of asks for a cancel") {
  const FakeTokenizer tokenizer({"a."});
  TextAssembler found(tokenizer, with_stop({"."}));
  found.push(token(tokenizer.id(0)));
  CHECK(found.ended_by_text());
  TextAssembler both(tokenizer, with_stop({"."}));
  both.push(token(tokenizer.id(0), FinishReason::kLength));
  CHECK_FALSE(both.ended_by_text());
}

TEST_CASE("flush releases what is held when the answer breaks off") {
  const FakeTokenizer tokenizer({"ab<st"});
  TextAssembler assembler(tokenizer, with_stop({"<stop>"}));
  CHECK(assembler.push(token(tokenizer.id(0))).text == "ab");
  const TextDelta rest = assembler.flush();
  CHECK(rest.text == "<st");
  CHECK_FALSE(rest.finished());
  CHECK(assembler.flush().empty());
}

TEST_CASE("special tokens are skipped unless they are wanted") {
  const FakeTokenizer tokenizer({"a"});
  for (const bool skip : {true, false}) {
    AssemblerOptions options;
    options.skip_special = skip;
    TextAssembler assembler(tokenizer, options);  // The end token under ignore_eos
    CHECK(assembler.push(token(tokenizer.end_id())).text == (skip ? "" : "<|end|>"));
  }
}

TEST_CASE("logprobs come with their text, one entry a token, offsets in code points") {
  AssemblerOptions options = with_stop({"<stop>"});
  options.logprobs = 0;
  options.token_ids = true;
  const FakeTokenizer tokenizer({"h\xC3\xA9", "\xE2\x82", "\xAC", "<s", "o"});
  TextAssembler assembler(tokenizer, options);
  CHECK(assembler.push(token(tokenizer.id(0))).logprobs.size() == 1);
  CHECK(assembler.push(token(tokenizer.id(1))).logprobs.empty());
  const TextDelta euro = assembler.push(token(tokenizer.id(2)));
  CHECK(euro.text == "\xE2\x82\xAC");
  REQUIRE(euro.logprobs.size() == 2);
  CHECK(euro.logprobs[0].text_offset == 2);
  CHECK(euro.logprobs[1].text_offset == 2);
  CHECK(assembler.push(token(tokenizer.id(3))).empty());
  const TextDelta rest = assembler.push(token(tokenizer.id(4)));
  REQUIRE(rest.logprobs.size() == 2);
  CHECK(rest.logprobs[0].text_offset == 3);
  CHECK(rest.logprobs[1].text_offset == 5);
  CHECK(rest.token_ids == std::vector<TokenId>{tokenizer.id(3), tokenizer.id(4)});
  const TextDelta end = assembler.push(token(tokenizer.end_id(), FinishReason::kEndOfText));
  REQUIRE(end.logprobs.size() == 1);
  CHECK(end.logprobs[0].hidden);
  CHECK(end.logprobs[0].bytes == "<|end|>");
}

TEST_CASE("tokens that a stop string cuts away keep their entries at the text's end") {
  AssemblerOptions options = with_stop({"bcd"});
  options.logprobs = 0;
  const TextDelta all = run({"a", "b", "c", "d"}, options);
  CHECK(all.text == "a");
  REQUIRE(all.logprobs.size() == 4);
  CHECK(all.logprobs[3].text_offset == 1);
}

TEST_CASE("infinite and undefined logprobs are floored (sglang 5984, vllm 10234)") {
  const FakeTokenizer tokenizer({"a"});
  AssemblerOptions options;
  options.logprobs = 2;
  TextAssembler assembler(tokenizer, options);
  SampledToken sampled = token(tokenizer.id(0));
  sampled.logprob = std::nanf("");
  sampled.top = {
      {tokenizer.id(0), -0.5f}, {1, -std::numeric_limits<float>::infinity()}, {2, -1.0f}};
  const TextDelta delta = assembler.push(sampled);
  CHECK(delta.logprobs[0].logprob == -9999.0f);
  REQUIRE(delta.logprobs[0].top.size() == 2);  // Exactly as many as asked for
  CHECK(delta.logprobs[0].top[1].logprob == -9999.0f);
}

std::vector<std::string> random_cuts(const std::string& bytes, std::mt19937_64& random) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < bytes.size();) {
    const size_t step = 1 + random() % 4;
    pieces.push_back(bytes.substr(at, step));
    at += step;
  }
  return pieces;
}

TEST_CASE("any cutting of the same bytes into tokens gives the same text and finish") {
  const uint64_t seed = seed_from_environment();
  INFO("TANDEM_SEED=" << seed);
  std::mt19937_64 random(seed);
  const std::vector<std::string> atoms = {
      "a", "b", "ab", "\xC3\xA9", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80", "\xFF", "\xE2\x82"};
  for (int round = 0; round < 4000; ++round) {
    std::string bytes;
    for (size_t i = 1 + random() % 16; i > 0; --i) bytes += atoms[random() % atoms.size()];
    AssemblerOptions options;
    for (size_t i = random() % 3; i > 0; --i)
      options.stop.push_back(atoms[random() % 6] + atoms[random() % 6]);
    options.include_stop = random() % 2 == 0;
    options.logprobs = 0;
    const TextDelta whole = run({bytes}, options);
    const std::vector<std::string> pieces = random_cuts(bytes, random);
    std::vector<std::string> texts;
    const TextDelta cut = run(pieces, options, FinishReason::kEndOfText, &texts);
    REQUIRE(cut.text == whole.text);
    REQUIRE(cut.stop_reason == whole.stop_reason);
    for (const std::string& text : texts) REQUIRE(is_valid_utf8(text));
    const bool stopped = std::holds_alternative<std::string>(cut.stop_reason);
    if (!stopped) REQUIRE(cut.text == to_valid_utf8(bytes));
    if (!stopped) REQUIRE(cut.logprobs.size() == pieces.size() + 1);
    for (size_t i = 1; i < cut.logprobs.size(); ++i)
      REQUIRE(cut.logprobs[i].text_offset >= cut.logprobs[i - 1].text_offset);
  }
}

}  // namespace
}  // namespace tandem::openai

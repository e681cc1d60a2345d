// Preparer: from a request's body to token lists, ready to be dispatched: parse, validate, render
// the template, tokenise, check against the context. Pure, but slow for long prompts, and rendering
// blocks: call it on the work threads. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config.h"
#include "engine/tokenizer.h"
#include "router/objectives.h"
#include "router/openai/api_error.h"
#include "router/openai/request.h"

namespace tandem::templates {
class TemplateRenderer;
}

namespace tandem::router {

struct Prompt {
  std::vector<TokenId> tokens;
  int max_tokens = 0;            // Of output, per choice; 0: echo only
  std::vector<uint64_t> blocks;  // Names of its full blocks
  uint64_t fingerprint = 0;      // Of the whole
  std::string echo;              // The prompt's text, if the answer repeats it
};

struct Prepared {
  openai::CompletionRequest request;
  std::string model;  // The served name that the answer repeats
  std::vector<Prompt> prompts;
  Objectives objectives;
};

class Preparer {
 public:
  struct Parts {
    const Config& config;
    const Tokenizer& tokenizer;
    templates::TemplateRenderer* renderer = nullptr;  // Null: chats are refused
    std::vector<std::string> served;                  // Model names
  };
  explicit Preparer(Parts parts);

  openai::Parsed<Prepared> completion(std::string_view body, openai::Kind kind,
                                      const Headers& objectives) const;
  // Bodies of the answers.
  openai::Parsed<std::string> tokenize(std::string_view body) const;
  openai::Parsed<std::string> detokenize(std::string_view body) const;

 private:
  openai::Parsed<std::string> chat_text(const openai::CompletionRequest& request) const;
  openai::Parsed<std::vector<Prompt>> encode(const openai::CompletionRequest& request) const;

  const Parts parts_;
  const openai::Limits limits_;
  const openai::ModelLimits model_;
  const PrefixHasher hasher_;
};

}  // namespace tandem::router

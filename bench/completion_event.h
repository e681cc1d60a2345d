// What one frame of a streamed completion says that a load test wants to know.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::bench {

enum class Endpoint { kCompletions, kChat };

struct CompletionEvent {
  bool done = false;      // "[DONE]"
  bool content = false;   // Carries output: text, or an empty text that is neither role nor finish
  bool finished = false;  // Carries a finish_reason
  std::string_view text;  // Valid until the next parse()
  std::optional<int> prompt_tokens;
  std::optional<int> completion_tokens;
  std::string error;  // Message of an error frame, or of a frame that is not what it should be
};

// One per thread: keeps the JSON parser's memory between frames.
class CompletionEventParser {
 public:
  CompletionEventParser();
  ~CompletionEventParser();
  CompletionEvent parse(std::string_view data);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The reason in a JSON error body ({"error":{"message":...}} or {"error":"..."} or
// {"message":...}), else the body's first characters.
std::string error_message_of(std::string_view body);

}  // namespace tandem::bench

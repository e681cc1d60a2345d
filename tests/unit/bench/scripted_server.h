// A server for tests of the load generator: answers every request with the bytes that a script
// gives, piece by piece, so that any split, delay, nonsense or early end can be shown to the
// client. One thread of its own; the destructor stops and joins it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tandem::bench {

struct Piece {
  std::string bytes;
  std::chrono::milliseconds before{0};  // Waits so long before it is written
};

// What a client sent, and how its answer looks. The connection closes after the last piece.
struct ScriptedRequest {
  std::string target;
  std::string body;
};
using Script = std::function<std::vector<Piece>(const ScriptedRequest& request)>;

class ScriptedServer {
 public:
  // The script runs on the server's thread.
  explicit ScriptedServer(Script script);
  ~ScriptedServer();

  std::string url() const;
  // The most connections that were open at once so far.
  int peak_connections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The head of a streamed answer, with chunked coding.
std::string stream_head();
// `payload` as one HTTP chunk; "" is the end of the body.
std::string http_chunk(const std::string& payload);
// One event of a completion stream.
std::string text_frame(const std::string& text, bool finish = false);
std::string usage_frame(int prompt_tokens, int completion_tokens);
// A whole good answer of `tokens` tokens, with usage and [DONE].
std::string whole_answer(int tokens, int prompt_tokens);

}  // namespace tandem::bench

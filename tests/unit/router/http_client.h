// A blocking HTTP client that shows the bytes: tests send what they like and see what came. Every
// wait has a deadline.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/unique_fd.h"

namespace tandem::router {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // Lower-case names
  std::string body;                            // Without chunking
  std::vector<std::string> chunks;             // As they were cut
  bool complete = false;                       // The body's end was seen
  nlohmann::json json() const { return nlohmann::json::parse(body); }
};

class HttpClient {
 public:
  explicit HttpClient(const std::string& address, int receive_buffer = 0);

  void send(std::string_view bytes);
  // "" when the peer closed or 10 s have passed.
  std::string receive();
  HttpAnswer read_answer();
  // Waits for a head and at least `frames` SSE frames; returns all that came.
  std::string read_frames(int frames);
  bool closed_by_peer();
  void close();
  void reset();  // Close with RST

  HttpAnswer post(std::string_view path, std::string_view body);
  HttpAnswer get(std::string_view path);
  void send_post(std::string_view path, std::string_view body, std::string_view more_headers = "");

 private:
  UniqueFd socket_;
  std::string pending_;
};

HttpAnswer http_post(const std::string& address, std::string_view path, const nlohmann::json& body);
HttpAnswer http_get(const std::string& address, std::string_view path);
// The objects of "data:" frames; "[DONE]" as a string.
std::vector<nlohmann::json> sse_frames(const std::string& body);
// All text of one choice.
std::string stream_text(const std::string& body, int choice = 0);

}  // namespace tandem::router

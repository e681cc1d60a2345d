#include "http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "common/config.h"

namespace tandem::router {

HttpClient::HttpClient(const std::string& address, int receive_buffer) {
  const auto target = parse_host_port(address);
  socket_ = UniqueFd(::socket(AF_INET, SOCK_STREAM, 0));
  const timeval deadline{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof deadline);
  if (receive_buffer > 0)
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(target->port);
  ::inet_pton(AF_INET, target->host.c_str(), &to.sin_addr);
  if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0)
    socket_ = UniqueFd();
}

void HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

std::string HttpClient::receive() {
  if (!pending_.empty()) return std::exchange(pending_, {});
  std::string data(65536, '\0');
  const ssize_t count = ::recv(socket_.get(), data.data(), data.size(), 0);
  data.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return data;
}

HttpAnswer HttpClient::read_answer() {
  HttpAnswer answer;
  std::string data;
  const auto more = [&] {
    const std::string piece = receive();
    data += piece;
    return !piece.empty();
  };
  size_t head_end = 0;
  while ((head_end = data.find("\r\n\r\n")) == std::string::npos)
    if (!more()) return answer;
  std::string head = data.substr(0, head_end + 2);
  data.erase(0, head_end + 4);
  answer.status = std::atoi(head.c_str() + 9);
  for (size_t line = head.find("\r\n") + 2; line < head.size();) {
    const size_t end = head.find("\r\n", line);
    const size_t colon = head.find(':', line);
    std::string name = head.substr(line, colon - line);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    answer.headers[name] = head.substr(colon + 2, end - colon - 2);
    line = end + 2;
  }
  if (answer.status == 100) {
    pending_ = data;
    return answer;
  }
  if (answer.headers.contains("transfer-encoding")) {
    for (;;) {
      size_t line_end = 0;
      while ((line_end = data.find("\r\n")) == std::string::npos)
        if (!more()) return answer;
      const size_t size = std::strtoul(data.c_str(), nullptr, 16);
      while (data.size() < line_end + 2 + size + 2)
        if (!more()) return answer;
      const std::string chunk = data.substr(line_end + 2, size);
      data.erase(0, line_end + 2 + size + 2);
      if (size == 0) break;
      answer.body += chunk;
      answer.chunks.push_back(chunk);
    }
  } else if (answer.headers.contains("content-length")) {
    const size_t size = std::strtoul(answer.headers["content-length"].c_str(), nullptr, 10);
    while (data.size() < size)
      if (!more()) return answer;
    answer.body = data.substr(0, size);
    data.erase(0, size);
  } else if (answer.status != 204) {
    while (more()) {
    }
    answer.body = std::exchange(data, {});
  }
  answer.complete = true;
  pending_ = data;
  return answer;
}

std::string HttpClient::read_frames(int frames) {
  std::string data;
  for (;;) {
    int seen = 0;
    for (size_t at = 0; (at = data.find("data: ", at)) != std::string::npos; ++at) ++seen;
    if (seen >= frames) return data;
    const std::string piece = receive();
    if (piece.empty()) return data;
    data += piece;
  }
}

bool HttpClient::closed_by_peer() {
  char byte = 0;
  return ::recv(socket_.get(), &byte, 1, 0) <= 0;
}

void HttpClient::close() { socket_ = UniqueFd(); }

void HttpClient::reset() {
  const linger hard{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close();
}

void HttpClient::send_post(std::string_view path, std::string_view body,
                           std::string_view more_headers) {
  std::string text =
      "POST " + std::string(path) + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
  text += more_headers;
  text += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  text += body;
  send(text);
}

HttpAnswer HttpClient::post(std::string_view path, std::string_view body) {
  send_post(path, body);
  return read_answer();
}

HttpAnswer HttpClient::get(std::string_view path) {
  send("GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n\r\n");
  return read_answer();
}

HttpAnswer http_post(const std::string& address, std::string_view path,
                     const nlohmann::json& body) {
  HttpClient client(address);
  return client.post(path, body.dump());
}

HttpAnswer http_get(const std::string& address, std::string_view path) {
  HttpClient client(address);
  return client.get(path);
}

std::vector<nlohmann::json> sse_frames(const std::string& body) {
  std::vector<nlohmann::json> frames;
  size_t at = 0;
  while ((at = body.find("data: ", at)) != std::string::npos) {
    const size_t end = body.find("\n\n", at);
    const std::string text = body.substr(at + 6, end - at - 6);
    frames.push_back(text == "[DONE]" ? nlohmann::json(text)
                                      : nlohmann::json::parse(text, nullptr, false));
    if (end == std::string::npos) break;
    at = end;
  }
  return frames;
}

std::string stream_text(const std::string& body, int choice) {
  std::string text;
  for (const nlohmann::json& frame : sse_frames(body)) {
    if (!frame.is_object() || !frame.contains("choices")) continue;
    for (const nlohmann::json& entry : frame["choices"]) {
      if (entry["index"] != choice) continue;
      if (entry.contains("text"))
        text += entry["text"].get<std::string>();
      else if (entry["delta"].contains("content"))
        text += entry["delta"]["content"].get<std::string>();
    }
  }
  return text;
}

}  // namespace tandem::router

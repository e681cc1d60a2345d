#include "bench/http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include "bench/http_parser.h"

namespace tandem::bench {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReplyBytesMax = 64u << 20;

// One call: connect, write, read until the response is complete. The result is in `outcome`.
class Call {
 public:
  Call(asio::io_context& io, const Url& url, const HttpRequest& request)
      : resolver_(io), socket_(io), url_(url), text_(wire_text(url, request)) {}

  void start() {
    resolver_.async_resolve(url_.host, url_.port, [this](error_code error, auto endpoints) {
      if (error) return fail(error);
      asio::async_connect(socket_, endpoints, [this](error_code failed, const tcp::endpoint&) {
        if (failed) return fail(failed);
        asio::async_write(socket_, asio::buffer(text_), [this](error_code broken, size_t) {
          if (broken) return fail(broken);
          read();
        });
      });
    });
  }

  Status outcome{ErrorCode::kDeadlineExceeded, "no answer in time"};
  HttpReply reply;

 private:
  void fail(error_code error) { outcome = {ErrorCode::kUnavailable, error.message()}; }

  void read() {
    socket_.async_read_some(asio::buffer(buffer_), [this](error_code error, size_t size) {
      Status status = error == asio::error::eof ? parser_.finish() : Status();
      if (error && error != asio::error::eof) return fail(error);
      if (!error)
        status = parser_.feed({buffer_.data(), size}, [this](auto piece) { reply.body += piece; });
      if (status.ok() && reply.body.size() > kReplyBytesMax)
        status = {ErrorCode::kResourceExhausted, "the answer is longer than 64 MiB"};
      if (status.ok() && !parser_.done()) return read();
      reply.status_code = parser_.status_code();
      outcome = std::move(status);
    });
  }

  tcp::resolver resolver_;
  tcp::socket socket_;
  const Url& url_;
  const std::string text_;
  HttpResponseParser parser_;
  std::array<char, 16384> buffer_{};
};

}  // namespace

std::string Url::host_port() const {
  return fmt::format("{}:{}", host.find(':') == std::string::npos ? host : '[' + host + ']', port);
}

Result<Url> parse_url(const std::string& text) {
  const auto bad = [&](std::string_view why) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("{}: {}", text, why));
  };
  if (text.starts_with("https://"))
    return bad(
        "https is not spoken here: point at the server's plain port, or put a local proxy before "
        "it");
  std::string_view rest = text;
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  Url url;
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.path = rest.substr(slash);
  rest = rest.substr(0, slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : std::string_view::npos;
  const size_t colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  url.host =
      bracket == std::string_view::npos ? rest.substr(0, colon) : rest.substr(1, bracket - 1);
  url.port = colon == std::string_view::npos ? "80" : std::string(rest.substr(colon + 1));
  if (url.host.empty()) return bad("no host");
  if (url.port.empty() || url.port.size() > 5 ||
      !std::all_of(url.port.begin(), url.port.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return bad("the port is not a number");
  return url;
}

std::string wire_text(const Url& url, const HttpRequest& request) {
  std::string text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
                                 request.method, url.path, request.path, url.host_port());
  for (const std::string& header : request.headers) text += header + "\r\n";
  if (!request.body.empty()) {
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n",
                        request.body.size());
  }
  return text + "\r\n" + request.body;
}

Result<HttpReply> http_call(const Url& url, const HttpRequest& request,
                            std::chrono::milliseconds deadline) {
  asio::io_context io;
  Call call(io, url, request);
  call.start();
  io.run_for(deadline);
  if (!call.outcome.ok()) return call.outcome.with_context("http://" + url.host_port());
  return std::move(call.reply);
}

}  // namespace tandem::bench

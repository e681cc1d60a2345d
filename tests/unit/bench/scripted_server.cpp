#include "tests/unit/bench/scripted_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <thread>

namespace tandem::bench {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct Shared {
  Script script;
  std::atomic<int> open{0};
  std::atomic<int> peak{0};
};

// Reads one request, then plays its script. Kept alive by its own handlers.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Shared& shared)
      : socket_(std::move(socket)), timer_(socket_.get_executor()), shared_(shared) {
    const int now = ++shared_.open;
    int peak = shared_.peak;
    while (now > peak && !shared_.peak.compare_exchange_weak(peak, now)) {
    }
  }
  ~Connection() { --shared_.open; }

  void read() {
    auto self = shared_from_this();
    socket_.async_read_some(asio::buffer(buffer_), [this, self](error_code error, size_t size) {
      if (error) return;
      received_.append(buffer_.data(), size);
      const size_t end = received_.find("\r\n\r\n");
      if (end == std::string::npos || received_.size() < end + 4 + body_size(end)) return read();
      const size_t space = received_.find(' ');
      pieces_ =
          shared_.script({received_.substr(space + 1, received_.find(' ', space + 1) - space - 1),
                          received_.substr(end + 4)});
      play(0);
    });
  }

 private:
  size_t body_size(size_t header_end) const {
    const std::string name = "Content-Length: ";
    const size_t at = received_.find(name);
    return at == std::string::npos || at > header_end
               ? 0
               : std::stoul(received_.substr(at + name.size()));
  }

  void play(size_t index) {
    if (index >= pieces_.size()) {
      error_code ignored;
      socket_.shutdown(tcp::socket::shutdown_send, ignored);
      return;
    }
    auto self = shared_from_this();
    timer_.expires_after(pieces_[index].before);
    timer_.async_wait([this, self, index](error_code error) {
      if (error) return;
      asio::async_write(socket_, asio::buffer(pieces_[index].bytes),
                        [this, self, index](error_code failed, size_t) {
                          if (!failed) play(index + 1);
                        });
    });
  }

  tcp::socket socket_;
  asio::steady_timer timer_;
  Shared& shared_;
  std::string received_;
  std::vector<Piece> pieces_;
  std::array<char, 4096> buffer_{};
};

}  // namespace

struct ScriptedServer::Impl {
  explicit Impl(Script script)
      : shared{std::move(script)}, acceptor(io, {asio::ip::make_address("127.0.0.1"), 0}) {}

  void accept() {
    acceptor.async_accept([this](error_code error, tcp::socket socket) {
      if (error) return;
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      std::make_shared<Connection>(std::move(socket), shared)->read();
      accept();
    });
  }

  Shared shared;  // Outlives the connections, which io's destructor ends.
  asio::io_context io{1};
  tcp::acceptor acceptor;
  std::thread thread;
};

ScriptedServer::ScriptedServer(Script script) : impl_(std::make_unique<Impl>(std::move(script))) {
  impl_->accept();
  impl_->thread = std::thread([this] { impl_->io.run(); });
}

ScriptedServer::~ScriptedServer() {
  impl_->io.stop();
  impl_->thread.join();
}

std::string ScriptedServer::url() const {
  return fmt::format("http://127.0.0.1:{}", impl_->acceptor.local_endpoint().port());
}

int ScriptedServer::peak_connections() const { return impl_->shared.peak; }

std::string stream_head() {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
}

std::string http_chunk(const std::string& payload) {
  return fmt::format("{:x}\r\n{}\r\n", payload.size(), payload);
}

std::string text_frame(const std::string& text, bool finish) {
  return fmt::format(
      "data: {{\"choices\":[{{\"index\":0,\"text\":\"{}\",\"finish_reason\":{}}}]}}\n\n", text,
      finish ? "\"length\"" : "null");
}

std::string usage_frame(int prompt_tokens, int completion_tokens) {
  return fmt::format(
      "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{}}}}}\n\n",
      prompt_tokens, completion_tokens);
}

std::string whole_answer(int tokens, int prompt_tokens) {
  std::string answer = stream_head();
  for (int i = 0; i < tokens; ++i) answer += http_chunk(text_frame("a", i + 1 == tokens));
  answer += http_chunk(usage_frame(prompt_tokens, tokens));
  return answer + http_chunk("data: [DONE]\n\n") + http_chunk("");
}

}  // namespace tandem::bench

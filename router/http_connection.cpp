#include "router/http_connection.h"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "common/log.h"
#include "common/random.h"
#include "router/objectives.h"

namespace tandem::router {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kBufferBytes = 4096;         // Of an idle connection
constexpr size_t kBodyBufferBytes = 65536;    // One read of a large body
constexpr size_t kPipelinedBytesMax = 65536;  // Of following requests, while one is answered
constexpr size_t kIdBytesMax = 128;
constexpr size_t kLingerBytesMax = 64u << 20;
constexpr Milliseconds kLingerDeadline{2000};

bool printable(std::string_view text) {
  return !text.empty() && text.size() <= kIdBytesMax &&
         text.find_first_not_of(
             "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`"
             "abcdefghijklmnopqrstuvwxyz{|}~") == std::string_view::npos;
}

std::string make_request_id() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  for (const char byte : random_bytes(16)) {
    id += kDigits[(static_cast<unsigned char>(byte) >> 4) & 15];
    id += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return id;
}

char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

openai::ApiError malformed(std::string_view why) {
  return openai::invalid_request("", "invalid_http",
                                 "Malformed HTTP request: " + std::string(why) + ".");
}

}  // namespace

Connection::Connection(IoThread& thread, Socket socket, bool refuse)
    : thread_(thread), socket_(std::move(socket)), refuse_(refuse), watch_ended_(thread.io) {
  error_code ignored;
  // Without it, small writes of a stream wait for the client's acknowledgement.
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  buffer_.reserve(kBufferBytes);
  thread_.connections.insert(this);
}

Connection::~Connection() { thread_.connections.erase(this); }

asio::awaitable<void> Connection::run() {
  const auto self = shared_from_this();
  while (keep_alive_ && !gone_) {
    if (buffer_.size() == 0 && !co_await wait_for_bytes()) break;
    const Read read = co_await read_request();
    if (read == Read::kClosed) break;
    if (read == Read::kRequest && !refuse_) {
      co_await serve();
      continue;
    }
    keep_alive_ = false;
    co_await respond(error_response(read_error_.value_or(openai::overloaded(1))));
    co_await linger();
  }
  close();
}

// Between requests: until the next one begins.
asio::awaitable<bool> Connection::wait_for_bytes() {
  if (thread_.draining) co_return false;
  idle_ = true;
  set_deadline(thread_.config.idle_deadline);
  error_code error;
  const size_t count = co_await socket_.async_read_some(
      buffer_.prepare(kBufferBytes), asio::redirect_error(asio::use_awaitable, error));
  clear_deadline();
  idle_ = false;
  if (error) co_return false;
  buffer_.commit(count);
  co_return true;
}

asio::awaitable<Connection::Read> Connection::read_request() {
  request_ = Request{};
  request_.received = SystemClock::get().now();
  request_.received_us = SystemClock::get().wall_us();
  request_.id = make_request_id();
  origin_.clear();
  read_error_.reset();
  answered_ = false;
  http_1_0_ = false;
  head_request_ = false;
  set_deadline(thread_.config.read_deadline);

  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(thread_.config.header_bytes_max));
  parser.body_limit(static_cast<uint64_t>(thread_.config.body_bytes_max));
  error_code error;
  co_await http::async_read_header(socket_, buffer_, parser,
                                   asio::redirect_error(asio::use_awaitable, error));
  if (parser.is_header_done()) take_head(parser);
  if (!error && !refuse_) {
    const auto expect = parser.get()[http::field::expect];
    if (!expect.empty() && !http_1_0_ && !parser.is_done()) {
      if (!beast::iequals(expect, "100-continue")) {
        read_error_ = openai::invalid_request("", "invalid_http", "Unknown expectation.");
        read_error_->status = 417;
        co_return Read::kRefused;
      }
      if (!co_await send("HTTP/1.1 100 Continue\r\n\r\n")) co_return Read::kClosed;
      set_deadline(thread_.config.read_deadline);
    }
    if (parser.content_length().value_or(kBodyBufferBytes) > kBufferBytes)
      buffer_.reserve(kBodyBufferBytes);
    co_await http::async_read(socket_, buffer_, parser,
                              asio::redirect_error(asio::use_awaitable, error));
  }
  clear_deadline();
  if (!error) {
    request_.body = std::move(parser.get().body());
    if (buffer_.size() == 0 && buffer_.capacity() > 2 * kBufferBytes) {
      buffer_.shrink_to_fit();
      buffer_.reserve(kBufferBytes);
    }
    co_return Read::kRequest;
  }
  if (timed_out_) {
    read_error_ = openai::request_timeout();
  } else if (error == http::error::end_of_stream || error == http::error::partial_message) {
    co_return Read::kClosed;
  } else if (error == http::error::body_limit) {
    read_error_ = openai::request_too_large(thread_.config.body_bytes_max);
  } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    read_error_ = openai::headers_too_large();
  } else if (error.category() == http::make_error_code(http::error::bad_method).category()) {
    read_error_ = malformed(error.message());
  } else {
    co_return Read::kClosed;
  }
  co_return Read::kRefused;
}

template <class Parser>
void Connection::take_head(const Parser& parser) {
  const auto& message = parser.get();
  const auto field = [&](auto name) {
    const auto value = message[name];
    return std::string(value.data(), value.size());
  };
  request_.method = std::string(message.method_string().data(), message.method_string().size());
  request_.path = normalise_path({message.target().data(), message.target().size()});
  request_.content_type = field(http::field::content_type);
  request_.preflight_headers = field(http::field::access_control_request_headers);
  origin_ = field(http::field::origin);
  if (const std::string id = field("X-Request-Id"); printable(id)) {
    request_.id = id;
    request_.id_given = true;
  }
  for (const auto& header : message) {
    std::string name(header.name_string().data(), header.name_string().size());
    for (char& c : name) c = ascii_lower(c);
    if (is_objective(name))
      request_.objectives.emplace_back(std::move(name), std::string(header.value()));
  }
  http_1_0_ = message.version() < 11;
  keep_alive_ = message.keep_alive() && !thread_.draining;
  head_request_ = request_.method == "HEAD";
}

asio::awaitable<void> Connection::serve() {
  answering_ = true;
  ++thread_.exchanges;
  watch_wanted_ = true;
  arm_watch();
  bool failed = false;
  try {
    co_await thread_.handler(*this);
  } catch (const std::exception& exception) {
    log_error("event=handler_failed request={} reason={}", request_.id,
              tandem::quoted(exception.what()));
    failed = true;
  }
  on_gone_ = nullptr;
  if (failed && !answered_ && !gone_) co_await respond(error_response(openai::internal_error()));
  // An answer that broke off can only be shown by closing.
  if (!answered_ || streaming_) keep_alive_ = false;
  streaming_ = false;
  unsent_head_.clear();
  co_await stop_watch();
  request_.body = std::string();
  answering_ = false;
  --thread_.exchanges;
  if (thread_.draining) keep_alive_ = false;
}

std::string Connection::head(int status, std::string_view content_type,
                             const Headers& headers) const {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string text = http_1_0_ ? "HTTP/1.0 " : "HTTP/1.1 ";
  text += std::to_string(status);
  text += ' ';
  text.append(reason.data(), reason.size());
  const auto line = [&](std::string_view name, std::string_view value) {
    text += "\r\n";
    text += name;
    text += ": ";
    text += value;
  };
  line("X-Request-Id", request_.id);
  if (!content_type.empty()) line("Content-Type", content_type);
  for (const auto& [name, value] : headers) line(name, value);
  if (!origin_.empty()) {
    line("Access-Control-Allow-Origin", origin_);
    line("Vary", "Origin");
    line("Access-Control-Expose-Headers",
         "x-request-id, x-tandem-decision, retry-after, retry-after-ms");
  }
  if (!keep_alive_)
    line("Connection", "close");
  else if (http_1_0_)
    line("Connection", "keep-alive");
  return text;
}

asio::awaitable<bool> Connection::respond(Response response) {
  if (gone_ || answered_) co_return false;
  answered_ = true;
  std::string data = head(response.status, response.content_type, response.headers);
  if (response.status != 204) data += "\r\nContent-Length: " + std::to_string(response.body.size());
  data += "\r\n\r\n";
  if (!head_request_ && response.status != 204) data += response.body;
  co_return co_await send(std::move(data));
}

void Connection::start_stream(std::string_view content_type, const Headers& headers) {
  answered_ = true;
  streaming_ = true;
  // A client of HTTP/1.0 knows no chunks: the end of the connection ends the answer.
  if (http_1_0_) keep_alive_ = false;
  unsent_head_ = head(200, content_type, headers);
  unsent_head_ += http_1_0_ ? "\r\n\r\n" : "\r\nTransfer-Encoding: chunked\r\n\r\n";
}

asio::awaitable<bool> Connection::write(std::string_view data) {
  if (gone_) co_return false;
  std::string out = std::exchange(unsent_head_, {});
  if (http_1_0_) {
    out += data;
  } else if (!data.empty()) {
    char size[20];
    const int digits = std::snprintf(size, sizeof size, "%zx\r\n", data.size());
    out.append(size, static_cast<size_t>(digits));
    out += data;
    out += "\r\n";
  }
  co_return co_await send(std::move(out));
}

asio::awaitable<bool> Connection::finish_stream(std::string_view data, bool keep) {
  if (gone_) co_return false;
  streaming_ = false;
  if (!keep) keep_alive_ = false;
  std::string out = std::exchange(unsent_head_, {});
  if (http_1_0_) {
    out += data;
  } else {
    if (!data.empty()) {
      char size[20];
      const int digits = std::snprintf(size, sizeof size, "%zx\r\n", data.size());
      out.append(size, static_cast<size_t>(digits));
      out += data;
      out += "\r\n";
    }
    out += "0\r\n\r\n";
  }
  co_return co_await send(std::move(out));
}

// Writes at once what the socket takes, which is nearly always everything, and waits only for the
// rest.
asio::awaitable<bool> Connection::send(std::string data) {
  size_t sent = 0;
  error_code error;
  while (sent < data.size()) {
    sent += socket_.write_some(asio::buffer(data.data() + sent, data.size() - sent), error);
    if (error == asio::error::would_block || error == asio::error::try_again) {
      set_deadline(thread_.config.write_deadline);
      error.clear();
      co_await socket_.async_wait(Socket::wait_write,
                                  asio::redirect_error(asio::use_awaitable, error));
      clear_deadline();
      if (gone_) co_return false;
    }
    if (error) {
      lost();
      co_return false;
    }
  }
  co_return true;
}

// Lets a client that is still sending see the answer: closing now would reset the connection.
asio::awaitable<void> Connection::linger() {
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error) co_return;
  const TimePoint until = SystemClock::get().now() + kLingerDeadline;
  size_t total = 0;
  buffer_.clear();
  while (total < kLingerBytesMax && SystemClock::get().now() < until) {
    deadline_ = until;
    const size_t count = co_await socket_.async_read_some(
        buffer_.prepare(kBodyBufferBytes), asio::redirect_error(asio::use_awaitable, error));
    clear_deadline();
    if (error) break;
    total += count;
  }
}

void Connection::arm_watch() {
  if (!watch_wanted_ || watching_ || gone_ || buffer_.size() >= kPipelinedBytesMax) return;
  watching_ = true;
  const auto done = [self = shared_from_this()](const error_code& error, size_t count) {
    self->watching_ = false;
    self->buffer_.commit(count);
    self->watch_ended_.cancel();
    if (!self->watch_wanted_) return;
    if (error)
      self->lost();
    else
      self->arm_watch();
  };
  socket_.async_read_some(buffer_.prepare(kBufferBytes),
                          asio::bind_cancellation_slot(watch_cancel_.slot(), done));
}

asio::awaitable<void> Connection::stop_watch() {
  watch_wanted_ = false;
  if (!watching_) co_return;
  watch_cancel_.emit(asio::cancellation_type::terminal);
  // Cancelled reads complete at once; the limit is there because every wait has one.
  watch_ended_.expires_after(std::chrono::seconds(10));
  error_code ignored;
  if (watching_)
    co_await watch_ended_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

// The client is not there any more, or takes nothing.
void Connection::lost() {
  if (gone_) return;
  gone_ = true;
  keep_alive_ = false;
  if (std::function<void()> callback = std::exchange(on_gone_, nullptr)) callback();
}

void Connection::set_deadline(Milliseconds from_now) {
  timed_out_ = false;
  deadline_ = SystemClock::get().now() + from_now;
}

void Connection::check_deadline(TimePoint now) {
  if (now < deadline_) return;
  clear_deadline();
  timed_out_ = true;
  if (answering_) lost();
  error_code ignored;
  socket_.cancel(ignored);
}

void Connection::close_idle() {
  if (idle_) close();
}

void Connection::close() {
  error_code ignored;
  socket_.shutdown(Socket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace tandem::router

#include "bench/stream_request.h"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/write.hpp>

namespace tandem::bench {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kErrorBodyMax = 4096;

}  // namespace

StreamRequest::StreamRequest(asio::io_context& io, StreamContext& context, RequestRecord initial,
                             std::string wire, double deadline_s, OnDone on_done)
    : record(std::move(initial)),
      socket_(io),
      context_(context),
      wire_(std::move(wire)),
      deadline_s_(deadline_s),
      on_done_(std::move(on_done)) {}

void StreamRequest::start() {
  ++context_.gauges.waiting;
  record.start_s = context_.elapsed_s();
  auto self = shared_from_this();
  asio::async_connect(socket_, context_.endpoints, [this, self](error_code error, const auto&) {
    if (error) return end({ErrorCode::kUnavailable, "connect: " + error.message()});
    connected_ = true;
    error_code ignored;
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    // Reads at once: a server may answer, and close, before it has taken the whole body.
    read();
    asio::async_write(socket_, asio::buffer(wire_),
                      [this, self](error_code, size_t) { std::string().swap(wire_); });
  });
}

void StreamRequest::abort(const std::string& reason) {
  if (over_) return;
  abort_reason_ = reason;
  error_code ignored;
  socket_.close(ignored);
}

void StreamRequest::read() {
  auto self = shared_from_this();
  socket_.async_read_some(asio::buffer(buffer_), [this, self](error_code error, size_t size) {
    if (!error) return on_bytes(size);
    end(error == asio::error::eof ? http_.finish()
                                  : Status(ErrorCode::kUnavailable, "read: " + error.message()));
  });
}

void StreamRequest::on_bytes(size_t size) {
  const double now_s = context_.elapsed_s();
  Status status =
      http_.feed({buffer_.data(), size}, [&](std::string_view piece) { on_body(piece, now_s); });
  if (!status.ok() || http_.done() || !frame_error_.empty()) return end(std::move(status));
  read();
}

void StreamRequest::on_body(std::string_view piece, double now_s) {
  if (http_.status_code() != 200) {
    error_body_ += piece.substr(0, kErrorBodyMax - std::min(kErrorBodyMax, error_body_.size()));
    return;
  }
  const Status status = sse_.feed(piece, [&](std::string_view data) { on_frame(data, now_s); });
  if (!status.ok() && frame_error_.empty()) frame_error_ = status.message();
}

void StreamRequest::on_frame(std::string_view data, double now_s) {
  const CompletionEvent event = context_.events.parse(data);
  if (!event.error.empty()) {
    if (frame_error_.empty()) frame_error_ = event.error;
    return;
  }
  finished_ = finished_ || event.done || event.finished;
  // A finish without any content before it is the first thing that the user learns.
  if (event.content || (event.finished && record.token_times_s.empty())) on_token(now_s);
  if (context_.keep_text) record.text += event.text;
  if (event.prompt_tokens) record.input_tokens = *event.prompt_tokens;
  if (event.completion_tokens) {
    completion_tokens_ = *event.completion_tokens;
    record.counted_by_server = true;
  }
}

void StreamRequest::on_token(double now_s) {
  if (record.token_times_s.empty()) {
    record.token_times_s.reserve(static_cast<size_t>(record.output_planned));
    --context_.gauges.waiting;
    ++context_.gauges.running;
  }
  record.token_times_s.push_back(now_s);
  ++context_.gauges.tokens;
}

void StreamRequest::end(Status transport) {
  if (over_) return;
  over_ = true;
  --(record.token_times_s.empty() ? context_.gauges.waiting : context_.gauges.running);
  record.error = failure(transport);
  record.ok = record.error.empty();
  record.output_tokens =
      record.counted_by_server ? completion_tokens_ : static_cast<int>(record.token_times_s.size());
  error_code ignored;
  socket_.close(ignored);
  on_done_(*this, connected_);
}

std::string StreamRequest::failure(const Status& transport) const {
  if (!abort_reason_.empty()) return abort_reason_;
  if (http_.has_header() && http_.status_code() != 200)
    return fmt::format("HTTP {}: {}", http_.status_code(), error_message_of(error_body_));
  if (!frame_error_.empty()) return frame_error_;
  if (finished_ && !record.token_times_s.empty()) return {};
  if (!transport.ok()) return transport.message();
  return record.token_times_s.empty() ? "stream ended without any token"
                                      : "stream ended without a finish_reason";
}

}  // namespace tandem::bench

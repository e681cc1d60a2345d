// One streamed completion over its own connection: connects, sends, reads events until the answer
// ends. Everything happens on the io_context's one thread. The owner keeps the shared_ptr until
// `on_done` was called, which happens exactly once, never from inside start().
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/completion_event.h"
#include "bench/http_parser.h"
#include "bench/record.h"
#include "bench/sse_parser.h"
#include "common/clock.h"

namespace tandem::bench {

// Live figures of a run, for its progress line.
struct LoadGauges {
  int waiting = 0;  // Sent, no token yet
  int running = 0;  // Between first and last token
  int64_t tokens = 0;
};

// What the requests of a run have in common; outlives them.
struct StreamContext {
  std::vector<boost::asio::ip::tcp::endpoint> endpoints;
  TimePoint started;
  bool keep_text = false;
  CompletionEventParser events;
  LoadGauges gauges;

  double elapsed_s() const { return to_seconds(SystemClock::get().now() - started); }
};

class StreamRequest : public std::enable_shared_from_this<StreamRequest> {
 public:
  // `connected`: whether a connection stood, so that a dead server is told from a refusing one.
  using OnDone = std::function<void(StreamRequest& request, bool connected)>;

  StreamRequest(boost::asio::io_context& io, StreamContext& context, RequestRecord record,
                std::string wire, double deadline_s, OnDone on_done);

  void start();
  // Ends it as failed with this reason; no effect once it is done.
  void abort(const std::string& reason);
  // Seconds since the start of the run.
  double deadline_s() const { return deadline_s_; }

  RequestRecord record;

 private:
  void read();
  void on_bytes(size_t size);
  void on_body(std::string_view piece, double now_s);
  void on_frame(std::string_view data, double now_s);
  void on_token(double now_s);
  void end(Status transport);
  std::string failure(const Status& transport) const;

  boost::asio::ip::tcp::socket socket_;
  StreamContext& context_;
  std::string wire_;
  const double deadline_s_;
  OnDone on_done_;
  HttpResponseParser http_;
  SseParser sse_;
  std::string error_body_;  // Of an answer that is not 200
  std::string frame_error_;
  std::string abort_reason_;
  int completion_tokens_ = 0;
  bool connected_ = false;
  bool finished_ = false;  // A finish_reason or [DONE] was seen
  bool over_ = false;
  std::array<char, 8192> buffer_;
};

}  // namespace tandem::bench

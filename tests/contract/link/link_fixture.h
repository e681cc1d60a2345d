// Two ends of a link, each with an io_context on a thread of its own, and mailboxes that tests wait
// on.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "link/session.h"

namespace tandem::link {

// What happened at one end, in order.
class Mailbox {
 public:
  struct Frame {
    FrameKind kind;
    std::string body;
  };

  SessionHandlers handlers() {
    SessionHandlers result;
    result.check = [this](const Hello& hello) {
      const std::lock_guard lock(mutex_);
      return hello.name == "unwelcome" ? Status(ErrorCode::kFailedPrecondition, "another model")
                                       : Status();
    };
    result.on_open = [this](const SessionPtr& session) {
      change([&] { sessions_.push_back(session); });
    };
    result.on_frame = [this](const SessionPtr&, FrameKind kind, std::string_view body) {
      change([&] { frames_.push_back({kind, std::string(body)}); });
    };
    result.on_close = [this](const SessionPtr&, const Status& reason) {
      change([&] { closes_.push_back(reason); });
    };
    return result;
  }

  bool wait_opens(size_t count) {
    return wait([&] { return sessions_.size() >= count; });
  }
  bool wait_frames(size_t count) {
    return wait([&] { return frames_.size() >= count; });
  }
  bool wait_closes(size_t count) {
    return wait([&] { return closes_.size() >= count; });
  }
  SessionPtr session(size_t index = 0) {
    const std::lock_guard lock(mutex_);
    return sessions_.at(index);
  }
  std::vector<Frame> frames() {
    const std::lock_guard lock(mutex_);
    return frames_;
  }
  std::vector<Status> closes() {
    const std::lock_guard lock(mutex_);
    return closes_;
  }
  size_t opens() {
    const std::lock_guard lock(mutex_);
    return sessions_.size();
  }
  // Sessions must not outlive their io_context.
  void forget_sessions() {
    const std::lock_guard lock(mutex_);
    sessions_.clear();
  }

 private:
  template <class Change>
  void change(Change apply) {
    {
      const std::lock_guard lock(mutex_);
      apply();
    }
    changed_.notify_all();
  }
  template <class Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), condition);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<SessionPtr> sessions_;
  std::vector<Frame> frames_;
  std::vector<Status> closes_;
};

struct End {
  explicit End(std::string end_name, std::string secret = "a secret of some length")
      : name(std::move(end_name)),
        context{config, std::move(secret),
                [this] {
                  Hello hello;
                  hello.kind = "worker";
                  hello.name = name;
                  return hello;
                }},
        guard(boost::asio::make_work_guard(io)) {
    config.heartbeat = Milliseconds(50);
    config.silence_max = Milliseconds(1500);
  }
  ~End() { stop(); }
  void start() {
    thread = std::thread([this] { io.run(); });
  }
  // Lets sessions say goodbye, then ends the thread.
  void stop() {
    if (dialer) dialer->stop();
    if (listener) listener->stop();
    guard.reset();
    if (thread.joinable()) {
      io.stop();
      thread.join();
    }
    mailbox.forget_sessions();
  }
  std::string start_listening() {
    auto made = listen(io, context, mailbox.handlers());
    TANDEM_CHECK(made.ok(), made.status().to_string());
    listener = std::move(*made);
    start();
    return listener->address();
  }

  Mailbox mailbox;
  std::string name;
  LinkConfig config;
  LinkContext context;
  boost::asio::io_context io;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Dialer> dialer;
  std::thread thread;
};

}  // namespace tandem::link

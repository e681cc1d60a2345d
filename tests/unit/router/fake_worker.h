// FakeWorker: a worker without an engine, speaking the real link protocol on a real port. Its
// tokens are a pure function of (seed, position), so that any worker continues what another one
// began. A script decides where it fails. One thread of its own; everything here may be called from
// the test's thread.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/config.h"
#include "link/session.h"

namespace tandem::router {

// kHang: this leg goes no further. kDie: the process is gone. kFreeze: it stops, with its sockets
// open.
enum class Fate { kGoOn, kFail, kRefuseForGood, kHang, kDie, kFreeze };

struct Script {
  // Asked when a prompt arrives, on the worker's thread.
  std::function<Fate(const link::Leg&)> prompt = [](const link::Leg&) { return Fate::kGoOn; };
  // Asked before each decode token; `emitted` counts the choice's tokens so far.
  std::function<Fate(const link::Leg&, int emitted)> token = [](const link::Leg&, int) {
    return Fate::kGoOn;
  };
  int end_at = -1;  // The choice's token of this index (0: the first) is the end token
  ErrorCode failure = ErrorCode::kDataLoss;
  std::chrono::microseconds prompt_time{500};
  std::chrono::microseconds step_time{300};
  // How long a hand-over is on its way, in landing memory, and in the cache.
  std::chrono::microseconds stream_time{0}, land_time{0}, join_time{0};
  Fate role_change = Fate::kGoOn;         // kFail: says why not. kHang: stays on its way for ever
  std::vector<link::StepSample> samples;  // In every load
};

// Moves a prompt's KV between fake workers: tells the decode worker of that name.
class HandOver {
 public:
  using Receiver = std::function<void(TransferId, std::vector<SampledToken>)>;
  void add(const std::string& name, Receiver receiver);
  void remove(const std::string& name);
  void deliver(const std::string& name, TransferId transfer, std::vector<SampledToken> first);

 private:
  std::mutex mutex_;
  std::map<std::string, Receiver> receivers_;
};

class FakeWorker {
 public:
  struct Options {
    std::string name;
    Role role = Role::kDecode;
    std::string tokenizer_digest;
    std::string model_digest = "model";
    std::string listen = "127.0.0.1:0";
    int context = 4096;
    int vocab = 32000;
    int slots = 16;
    int64_t kv_tokens = 65536;
    Script script;
  };
  FakeWorker(Options options, HandOver& hand_over);
  ~FakeWorker();

  const std::string& name() const { return options_.name; }
  std::string address() const { return address_; }
  Role role() const { return role_.load(); }
  // The port and all links close, as when a process is killed.
  void die();

  struct Counts {
    int prefills = 0;
    int decodes = 0;
    int cancels = 0;  // Of whole legs
    int choice_cancels = 0;
    int active = 0;                    // Legs that neither ended nor were cancelled
    std::vector<std::string> actions;  // Control commands
    std::vector<link::Leg> legs;       // All that came, in order
  };
  Counts counts() const;
  // What a leg's choice says at this position.
  static TokenId token_at(uint64_t seed, int position, int vocab);

 private:
  struct Leg {
    link::Leg leg;
    link::SessionPtr session;
    std::string decode_name;  // Where the KV goes
    bool local = false;
    bool prefill = false;  // Came as a Prefill command
    bool joined = false;
    std::vector<int> emitted;  // Per choice
    std::vector<bool> done;
  };

  void on_frame(const link::SessionPtr& session, link::FrameKind kind, std::string_view body);
  void on_prompt(Leg leg);
  void finish_prompt(TransferId transfer);
  void receive(TransferId transfer, const std::vector<SampledToken>& first);
  void join(TransferId transfer, const std::vector<SampledToken>& first);
  void step();
  void arm_step();
  bool step_choice(Leg& leg, size_t choice, link::Tokens& tokens);
  SampledToken sample(const Leg& leg, size_t choice) const;
  void end_leg(TransferId transfer);
  void fail_leg(TransferId transfer, bool retryable, std::optional<ErrorCode> code = {});
  void vanish();
  void change_role(Role to);
  void after(std::chrono::microseconds pause, std::function<void()> then);
  void say(TransferId transfer, const std::string& event);
  void push_load();

  const Options options_;
  HandOver& hand_over_;
  const Epoch epoch_;
  LinkConfig link_config_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_;
  link::LinkContext context_;
  std::unique_ptr<link::Listener> listener_;
  std::string address_;
  std::vector<link::SessionPtr> sessions_;
  std::map<TransferId, Leg> legs_;
  std::map<TransferId, std::vector<SampledToken>> early_;  // KV that came before its command
  boost::asio::steady_timer stepper_;
  bool stepping_ = false;
  bool draining_ = false;
  std::atomic<Role> role_;
  std::string switching_to_;
  std::string role_error_;
  mutable std::mutex counts_mutex_;
  Counts counts_;
  std::thread thread_;
};

}  // namespace tandem::router

// A router reduced to its link: sends commands to workers and remembers what they answer.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/random.h"
#include "link/session.h"

namespace tandem::worker {

// Everything that came back for one transfer.
struct Answer {
  std::optional<link::PrefillDone> prefill;
  std::map<int, std::vector<SampledToken>> tokens;  // By choice, from decode steps
  std::vector<link::LegFailed> failures;
  std::vector<link::LegEvent> events;

  bool has_event(std::string_view name) const {
    for (const auto& event : events) {
      if (event.name == name) return true;
    }
    return false;
  }
  // The whole output of a choice: its first token and what decode steps added.
  std::vector<TokenId> output(int choice = 0) const {
    std::vector<TokenId> all;
    if (prefill) all.push_back(prefill->first.at(static_cast<size_t>(choice)).token);
    if (const auto at = tokens.find(choice); at != tokens.end()) {
      for (const SampledToken& sampled : at->second) all.push_back(sampled.token);
    }
    return all;
  }
  FinishReason finish(int choice = 0) const {
    const auto at = tokens.find(choice);
    if (at != tokens.end() && at->second.back().finish != FinishReason::kNone) {
      return at->second.back().finish;
    }
    return prefill ? prefill->first.at(static_cast<size_t>(choice)).finish : FinishReason::kNone;
  }
  bool finished(int choices = 1) const {
    for (int i = 0; i < choices; ++i) {
      if (finish(i) == FinishReason::kNone) return false;
    }
    return true;
  }
};

class TestRouter {
 public:
  TestRouter()
      : context_{config_, "",
                 [] {
                   link::Hello hello;
                   hello.kind = "router";
                   hello.name = "router-test";
                   return hello;
                 }},
        guard_(boost::asio::make_work_guard(io_)),
        thread_([this] { io_.run(); }) {
    config_.silence_max = Milliseconds(30000);
  }
  ~TestRouter() {
    for (const auto& [address, session] : sessions_) {
      session->close({ErrorCode::kCancelled, "the test is over"});
    }
    wait([this] { return open_.empty(); });
    guard_.reset();
    io_.stop();
    thread_.join();
    sessions_.clear();
  }

  // Requires: a worker listens there.
  link::SessionPtr connect(const std::string& address) {
    link::SessionHandlers handlers;
    handlers.on_open = [this](const link::SessionPtr& session) {
      change([&] { open_.insert(session.get()); });
    };
    handlers.on_frame = [this](const link::SessionPtr& session, link::FrameKind kind,
                               std::string_view body) {
      change([&] { take(session.get(), kind, body); });
    };
    handlers.on_close = [this](const link::SessionPtr& session, const Status&) {
      change([&] { open_.erase(session.get()); });
    };
    auto session = link::dial(io_, context_, address, handlers);
    TANDEM_CHECK(wait([&] { return open_.count(session.get()) == 1; }), "no link to " + address);
    sessions_[address] = session;
    return session;
  }

  void send(const link::SessionPtr& to, const link::DecodeCommand& command) {
    TANDEM_CHECK(to->send(link::FrameKind::kDecode, command.encode()).ok(), "send");
  }
  void send(const link::SessionPtr& to, const link::PrefillCommand& command) {
    TANDEM_CHECK(to->send(link::FrameKind::kPrefill, command.encode()).ok(), "send");
  }
  void cancel(const link::SessionPtr& to, TransferId transfer, int choice = -1) {
    const link::CancelCommand command{transfer, choice, "test"};
    static_cast<void>(to->send(link::FrameKind::kCancel, command.encode()));
  }

  // Waits until `done` holds for what came back for `transfer`; the answer as it is then, or at the
  // deadline.
  Answer wait_answer(TransferId transfer, const std::function<bool(const Answer&)>& done) {
    wait([&] { return done(answers_[transfer]); });
    const std::lock_guard lock(mutex_);
    return answers_[transfer];
  }
  Answer wait_finished(TransferId transfer, int choices = 1) {
    return wait_answer(transfer, [&](const Answer& answer) {
      return answer.finished(choices) || !answer.failures.empty();
    });
  }
  Answer wait_event(TransferId transfer, std::string_view name) {
    return wait_answer(transfer, [&](const Answer& answer) { return answer.has_event(name); });
  }
  // The worker's last Load once it satisfies `done`.
  bool wait_load(const link::SessionPtr& from, const std::function<bool(const link::Load&)>& done) {
    return wait([&] { return loads_.count(from.get()) > 0 && done(loads_[from.get()]); });
  }
  bool wait_idle(const link::SessionPtr& from) {
    return wait_load(from, [](const link::Load& load) {
      return load.running == 0 && load.waiting == 0 && load.kv_tokens_used == 0 &&
             load.kv_tokens_reserved == 0 && load.transfers_in_flight == 0 &&
             load.prefill_backlog_tokens == 0;
    });
  }
  link::Load load(const link::SessionPtr& from) {
    const std::lock_guard lock(mutex_);
    return loads_[from.get()];
  }
  bool wait_closed(const link::SessionPtr& session) {
    return wait([&] { return open_.count(session.get()) == 0; });
  }

 private:
  void take(const link::Session* from, link::FrameKind kind, std::string_view body) {
    if (kind == link::FrameKind::kLoad) {
      link::Load load = *link::Load::decode(body);
      auto samples = std::move(loads_[from].samples);  // All that ever came
      samples.insert(samples.end(), load.samples.begin(), load.samples.end());
      load.samples = std::move(samples);
      loads_[from] = std::move(load);
    } else if (kind == link::FrameKind::kPrefillDone) {
      auto done = *link::PrefillDone::decode(body);
      answers_[done.transfer].prefill = std::move(done);
    } else if (kind == link::FrameKind::kTokens) {
      auto frame = *link::Tokens::decode(body);
      for (auto& entry : frame.entries) {
        answers_[entry.transfer].tokens[entry.choice].push_back(std::move(entry.sampled));
      }
    } else if (kind == link::FrameKind::kLegFailed) {
      auto failed = *link::LegFailed::decode(body);
      answers_[failed.transfer].failures.push_back(std::move(failed));
    } else if (kind == link::FrameKind::kLegEvent) {
      auto event = *link::LegEvent::decode(body);
      answers_[event.transfer].events.push_back(std::move(event));
    }
  }
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
    return changed_.wait_for(lock, std::chrono::seconds(30), condition);
  }

  LinkConfig config_;
  link::LinkContext context_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<const link::Session*> open_;
  std::map<const link::Session*, link::Load> loads_;
  std::map<TransferId, Answer> answers_;
  std::map<std::string, link::SessionPtr> sessions_;
  std::thread thread_;
};

// A sim cluster's configuration that computes quickly: 64-token chunks of about 2 ms, steps of
// about 1 ms.
inline Config quick_config() {
  Config config;
  config.model.engine = "sim";
  config.model.name = "sim";
  config.model.context = 2048;
  config.engine.chunk_tokens = 64;
  config.sim.prefill_base_ms = 1;
  config.sim.prefill_per_token_us = 20;
  config.sim.prefill_per_token2_us = 0;
  config.sim.decode_base_ms = 1;
  config.sim.decode_per_sequence_ms = 0.01;
  config.sim.decode_per_context_us = 0;
  config.sim.layers = 4;
  config.sim.kv_bytes_per_token = 2048;
  config.sim.vocab = 1000;
  config.prefill.slots = 4;
  config.decode.slots = 8;
  config.coupled.slots = 8;
  config.partitioned.slots = 6;
  config.link.heartbeat = Milliseconds(100);
  config.link.silence_max = Milliseconds(30000);  // A starved test machine is not a dead peer
  config.transfer.transport = "tcp";
  return config;
}

// A leg with a prompt that `seed` determines.
inline link::Leg make_leg(uint64_t seed, int prompt, int max_tokens, int choices = 1) {
  link::Leg leg;
  leg.transfer.value = random_u64();
  leg.request = "test";
  for (int i = 0; i < prompt; ++i) {
    const uint64_t draw = counter_random(seed, static_cast<uint64_t>(i));
    leg.tokens.push_back(static_cast<TokenId>(260 + draw % 700));
  }
  leg.prompt_count = prompt;
  leg.choices = choices;
  for (int i = 0; i < choices; ++i) leg.seeds.push_back(choice_seed(seed, 0, i));
  leg.max_tokens = max_tokens;
  leg.sampling.ignore_eos = true;
  return leg;
}

}  // namespace tandem::worker

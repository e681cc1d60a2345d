#include "fake_worker.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <future>

#include "common/clock.h"
#include "common/random.h"

namespace tandem::router {
namespace asio = boost::asio;

namespace {

constexpr TokenId kFirstWord = 260;  // Of the sim tokenizer
constexpr TokenId kEnd = 257;

}  // namespace

void HandOver::add(const std::string& name, Receiver receiver) {
  const std::lock_guard lock(mutex_);
  receivers_[name] = std::move(receiver);
}

void HandOver::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  receivers_.erase(name);
}

void HandOver::deliver(const std::string& name, TransferId transfer,
                       std::vector<SampledToken> first) {
  const std::lock_guard lock(mutex_);
  if (const auto it = receivers_.find(name); it != receivers_.end())
    it->second(transfer, std::move(first));
}

FakeWorker::FakeWorker(Options options, HandOver& hand_over)
    : options_(std::move(options)),
      hand_over_(hand_over),
      epoch_{random_u64()},
      guard_(asio::make_work_guard(io_)),
      context_{link_config_, "", {}},
      stepper_(io_),
      role_(options_.role) {
  link_config_.listen = options_.listen;
  link_config_.heartbeat = Milliseconds(100);
  context_.self = [this] {
    link::Hello hello;
    hello.kind = "worker";
    hello.name = options_.name;
    hello.build = "fake";
    hello.epoch = epoch_;
    hello.model = "sim";
    hello.model_digest = options_.model_digest;
    hello.tokenizer_digest = options_.tokenizer_digest;
    hello.kv_layout_digest = "layout";
    hello.engine = "sim";
    hello.role = role_;
    hello.listen = address_;
    hello.slots = options_.slots;
    hello.kv_tokens = options_.kv_tokens;
    hello.kv_bytes_per_token = 1;
    hello.context = options_.context;
    hello.chunk_tokens = 256;
    hello.transports = {"tcp"};
    return hello;
  };
  link::SessionHandlers handlers;
  handlers.check = [](const link::Hello&) { return Status(); };
  handlers.on_open = [this](const link::SessionPtr& session) {
    sessions_.push_back(session);
    push_load();
  };
  handlers.on_frame = [this](const link::SessionPtr& session, link::FrameKind kind,
                             std::string_view body) { on_frame(session, kind, body); };
  handlers.on_close = [this](const link::SessionPtr& session, const Status&) {
    std::erase(sessions_, session);
    std::vector<TransferId> lost;
    for (const auto& [transfer, leg] : legs_)
      if (leg.session == session) lost.push_back(transfer);
    for (const TransferId transfer : lost) end_leg(transfer);
  };
  auto made = link::listen(io_, context_, handlers);
  TANDEM_CHECK(made.ok(), made.status().to_string());
  listener_ = std::move(*made);
  address_ = listener_->address();
  hand_over_.add(options_.name, [this](TransferId transfer, std::vector<SampledToken> first) {
    asio::post(io_, [this, transfer, first = std::move(first)] { receive(transfer, first); });
  });
  thread_ = std::thread([this] { io_.run(); });
}

FakeWorker::~FakeWorker() { die(); }

void FakeWorker::die() {
  if (!thread_.joinable()) return;
  std::promise<void> gone;
  if (!io_.stopped()) {
    asio::post(io_, [this, &gone] {
      vanish();
      gone.set_value();
    });
    gone.get_future().wait_for(std::chrono::seconds(5));
  }
  io_.stop();
  thread_.join();
  vanish();
}

// On the worker's thread, or when it has ended.
void FakeWorker::vanish() {
  hand_over_.remove(options_.name);
  const std::vector<link::SessionPtr> sessions = sessions_;
  for (const link::SessionPtr& session : sessions)
    session->close(Status(ErrorCode::kUnavailable, "killed"));
  listener_->stop();
  legs_.clear();
  const std::lock_guard lock(counts_mutex_);
  counts_.active = 0;
}

FakeWorker::Counts FakeWorker::counts() const {
  const std::lock_guard lock(counts_mutex_);
  return counts_;
}

TokenId FakeWorker::token_at(uint64_t seed, int position, int vocab) {
  const uint64_t draw = counter_random(seed, static_cast<uint64_t>(position));
  return kFirstWord + static_cast<TokenId>(draw % static_cast<uint64_t>(vocab - kFirstWord));
}

void FakeWorker::on_frame(const link::SessionPtr& session, link::FrameKind kind,
                          std::string_view body) {
  if (kind == link::FrameKind::kPrefill) {
    auto command = link::PrefillCommand::decode(body);
    TANDEM_CHECK(command.ok(), command.status().to_string());
    on_prompt({.leg = command->leg,
               .session = session,
               .decode_name = command->decode_name,
               .prefill = true});
  } else if (kind == link::FrameKind::kDecode) {
    auto command = link::DecodeCommand::decode(body);
    TANDEM_CHECK(command.ok(), command.status().to_string());
    on_prompt({.leg = command->leg,
               .session = session,
               .decode_name = options_.name,
               .local = command->local});
  } else if (kind == link::FrameKind::kCancel) {
    auto command = link::CancelCommand::decode(body);
    TANDEM_CHECK(command.ok(), command.status().to_string());
    const auto it = legs_.find(command->transfer);
    {
      const std::lock_guard lock(counts_mutex_);
      ++(command->choice < 0 ? counts_.cancels : counts_.choice_cancels);
    }
    if (it == legs_.end()) return;
    if (command->choice < 0)
      end_leg(command->transfer);
    else
      it->second.done[static_cast<size_t>(command->choice)] = true;
  } else if (kind == link::FrameKind::kControl) {
    auto command = link::ControlCommand::decode(body);
    TANDEM_CHECK(command.ok(), command.status().to_string());
    draining_ = command->action == "drain";
    if (command->action == "role") change_role(command->role);
    {
      const std::lock_guard lock(counts_mutex_);
      counts_.actions.push_back(command->action);
    }
    push_load();
  }
}

void FakeWorker::on_prompt(Leg leg) {
  const TransferId transfer = leg.leg.transfer;
  // Of a partitioned worker, the half that is meant.
  const bool prefills = leg.prefill || leg.local;
  leg.emitted.assign(static_cast<size_t>(leg.leg.choices),
                     static_cast<int>(leg.leg.tokens.size()) - leg.leg.prompt_count);
  leg.done.resize(static_cast<size_t>(leg.leg.choices));
  {
    const std::lock_guard lock(counts_mutex_);
    ++(leg.prefill ? counts_.prefills : counts_.decodes);
    counts_.legs.push_back(leg.leg);
    ++counts_.active;
  }
  const Fate fate = options_.script.prompt(leg.leg);
  legs_.emplace(transfer, std::move(leg));
  switch (fate) {
    case Fate::kFail:
      return fail_leg(transfer, true);
    case Fate::kRefuseForGood:
      return fail_leg(transfer, false);
    case Fate::kHang:
      return;
    case Fate::kDie:
      return vanish();
    case Fate::kFreeze:
      return io_.stop();
    case Fate::kGoOn:
      break;
  }
  if (prefills) {
    after(options_.script.prompt_time, [this, transfer] { finish_prompt(transfer); });
  } else if (const auto early = early_.find(transfer); early != early_.end()) {
    const std::vector<SampledToken> first = std::move(early->second);
    early_.erase(early);
    receive(transfer, first);
  }
}

SampledToken FakeWorker::sample(const Leg& leg, size_t choice) const {
  SampledToken sampled;
  const int index = leg.emitted[choice];
  const int position = leg.leg.prompt_count + index;
  sampled.token = token_at(leg.leg.seeds[choice], position, options_.vocab);
  if (index == options_.script.end_at) {
    sampled.token = kEnd;
    sampled.finish = FinishReason::kEndOfText;
  } else if (index + 1 >= leg.leg.max_tokens) {
    sampled.finish = FinishReason::kLength;
  }
  return sampled;
}

void FakeWorker::finish_prompt(TransferId transfer) {
  const auto it = legs_.find(transfer);
  if (it == legs_.end()) return;
  Leg& leg = it->second;
  link::PrefillDone done{.transfer = transfer,
                         .computed_tokens = static_cast<int>(leg.leg.tokens.size())};
  for (size_t choice = 0; choice < leg.done.size(); ++choice)
    done.first.push_back(sample(leg, choice));
  (void)leg.session->send(link::FrameKind::kPrefillDone, done.encode());
  const std::string decode_name = leg.decode_name;
  const bool local = leg.local;
  if (local) return join(transfer, done.first);
  end_leg(transfer);
  if (!decode_name.empty()) hand_over_.deliver(decode_name, transfer, done.first);
}

void FakeWorker::after(std::chrono::microseconds pause, std::function<void()> then) {
  if (pause == pause.zero()) return then();
  auto timer = std::make_shared<asio::steady_timer>(io_, pause);
  timer->async_wait([timer, then = std::move(then)](const auto& error) {
    if (!error) then();
  });
}

void FakeWorker::say(TransferId transfer, const std::string& name) {
  const auto it = legs_.find(transfer);
  if (it == legs_.end()) return;
  const link::LegEvent event{
      .transfer = transfer, .name = name, .at_us = SystemClock::get().wall_us()};
  (void)it->second.session->send(link::FrameKind::kLegEvent, event.encode());
}

void FakeWorker::receive(TransferId transfer, const std::vector<SampledToken>& first) {
  if (!legs_.contains(transfer)) {
    early_[transfer] = first;  // Overtook its command, or came after a cancel
    return;
  }
  after(options_.script.stream_time, [this, transfer, first] {
    say(transfer, "kv_last");
    after(options_.script.land_time, [this, transfer, first] {
      say(transfer, "landed");
      after(options_.script.join_time, [this, transfer, first] { join(transfer, first); });
    });
  });
}

void FakeWorker::join(TransferId transfer, const std::vector<SampledToken>& first) {
  const auto it = legs_.find(transfer);
  if (it == legs_.end()) return;
  Leg& leg = it->second;
  leg.joined = true;
  for (size_t choice = 0; choice < leg.done.size(); ++choice) {
    ++leg.emitted[choice];
    if (first[choice].finish != FinishReason::kNone) leg.done[choice] = true;
  }
  say(transfer, "joined");
  if (std::find(leg.done.begin(), leg.done.end(), false) == leg.done.end()) end_leg(transfer);
  arm_step();
}

void FakeWorker::arm_step() {
  if (stepping_) return;
  stepping_ = true;
  stepper_.expires_after(options_.script.step_time);
  stepper_.async_wait([this](const auto& error) {
    stepping_ = false;
    if (!error) step();
  });
}

// One token for every running choice; one frame per router.
void FakeWorker::step() {
  std::map<link::SessionPtr, link::Tokens> frames;
  std::vector<std::pair<TransferId, bool>> failed;
  std::vector<TransferId> ended;
  bool running = false;
  for (auto& [transfer, leg] : legs_) {
    if (!leg.joined) continue;
    bool open = false;
    for (size_t choice = 0; choice < leg.done.size(); ++choice) {
      if (leg.done[choice]) continue;
      const Fate fate = options_.script.token(leg.leg, leg.emitted[choice]);
      if (fate == Fate::kDie) return vanish();
      if (fate == Fate::kFreeze) return io_.stop();
      if (fate == Fate::kFail || fate == Fate::kRefuseForGood) {
        failed.emplace_back(transfer, fate == Fate::kFail);
        open = true;
        break;
      }
      if (fate == Fate::kHang) {
        open = true;
        continue;
      }
      open |= step_choice(leg, choice, frames[leg.session]);
    }
    running |= open;
    if (!open) ended.push_back(transfer);
  }
  for (const auto& [session, tokens] : frames)
    if (!tokens.entries.empty()) (void)session->send(link::FrameKind::kTokens, tokens.encode());
  for (const auto& [transfer, retryable] : failed) fail_leg(transfer, retryable);
  for (const TransferId transfer : ended) end_leg(transfer);
  if (running) arm_step();
}

bool FakeWorker::step_choice(Leg& leg, size_t choice, link::Tokens& tokens) {
  link::TokenEntry entry{.transfer = leg.leg.transfer, .choice = static_cast<int>(choice)};
  entry.sampled = sample(leg, choice);
  ++leg.emitted[choice];
  if (entry.sampled.finish != FinishReason::kNone) leg.done[choice] = true;
  tokens.entries.push_back(std::move(entry));
  return !leg.done[choice];
}

void FakeWorker::end_leg(TransferId transfer) {
  if (legs_.erase(transfer) == 0) return;
  const std::lock_guard lock(counts_mutex_);
  --counts_.active;
}

void FakeWorker::fail_leg(TransferId transfer, bool retryable, std::optional<ErrorCode> code) {
  const auto it = legs_.find(transfer);
  if (it == legs_.end()) return;
  const link::LegFailed failed{.transfer = transfer,
                               .code = code.value_or(options_.script.failure),
                               .message = "scripted",
                               .retryable = retryable};
  const link::SessionPtr session = it->second.session;
  end_leg(transfer);
  (void)session->send(link::FrameKind::kLegFailed, failed.encode());
}

// As a real one: what cannot stay is sent elsewhere, then the new role is said.
void FakeWorker::change_role(Role to) {
  role_error_.clear();
  switching_to_ = role_name(to);
  push_load();
  if (options_.script.role_change == Fate::kDie) return vanish();
  if (options_.script.role_change == Fate::kHang) return;
  if (options_.script.role_change == Fate::kFail) {
    role_error_ = "scripted";
  } else {
    std::vector<TransferId> here;
    for (const auto& [transfer, leg] : legs_) here.push_back(transfer);
    for (const TransferId transfer : here) fail_leg(transfer, true, ErrorCode::kUnavailable);
    role_ = to;
  }
  switching_to_.clear();
}

void FakeWorker::push_load() {
  link::Load load{.role = role_, .draining = draining_ || !switching_to_.empty()};
  load.switching_to = switching_to_;
  load.role_error = role_error_;
  load.slots = load.slots_free = options_.slots;
  load.samples = options_.script.samples;
  load.kv_tokens_capacity = options_.kv_tokens;
  load.counters["tandem_decode_tokens_total"] = 7;
  const std::string body = load.encode();
  for (const link::SessionPtr& session : sessions_)
    (void)session->send(link::FrameKind::kLoad, body);
}

}  // namespace tandem::router

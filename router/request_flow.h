// RequestFlow: one completion request from its body to its last byte. request_flow.cpp is the
// story.
//
// Lives inside its connection's coroutine, on one I/O thread. However it ends (answer, error,
// client gone, shutdown), its destructor is the one place that gives back what it holds: attempts
// that still run are cancelled, and it leaves the count of requests.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "router/answer.h"
#include "router/exchange.h"
#include "router/mailbox.h"
#include "router/services.h"

namespace tandem::router {

class RequestFlow {
 public:
  RequestFlow(Services& services, Exchange& exchange, openai::Kind kind);
  ~RequestFlow();
  RequestFlow(const RequestFlow&) = delete;
  RequestFlow& operator=(const RequestFlow&) = delete;

  boost::asio::awaitable<void> run();

 private:
  // An attempt that the dispatcher works on.
  struct Attempt {
    int prompt = 0;
    std::vector<int> choices;  // Attempt's choice i is the answer's choice choices[i]
    bool resumed = false;
    std::string lost_in;  // Phase of the loss that made it necessary
    std::vector<WorkerKey> avoid;
    TimePoint refused_since{};  // Workers have had no room since then; zero: they had
    TimePoint alone_since{};    // Nobody has been there to continue since then; zero: somebody was
  };
  // What waits for its turn: prompts not begun, and choices to resume after a pause.
  struct Pending {
    Attempt attempt;
    TimePoint since{};  // In the stage `tokenised`
    TimePoint not_before{};
  };

  // The story's steps.
  std::optional<openai::ApiError> admit();
  boost::asio::awaitable<std::optional<openai::ApiError>> tokenise();
  std::optional<openai::ApiError> begin_answer();
  void dispatch_pending(TimePoint now);
  void take_event(AttemptEvent event, TimePoint now);
  boost::asio::awaitable<bool> write_frames();
  boost::asio::awaitable<void> complete();
  boost::asio::awaitable<void> report(openai::ApiError error);
  void abandon();

  void submit(Attempt attempt);
  void took_prompt(const Attempt& attempt, TransferId transfer, PromptDone done, TimePoint now);
  void took_token(const Attempt& attempt, TransferId transfer, int choice,
                  const SampledToken& sampled, TimePoint now);
  void took_failure(const Attempt& attempt, const AttemptFailed& failure, TimePoint now);
  void took_refusal(const Attempt& attempt, const Refused& refused, TimePoint now);
  openai::ApiError overloaded(std::string_view message = {}) const;
  void wait_again(Attempt attempt, TimePoint now, Duration pause);
  void retry(const Attempt& lost, std::vector<int> choices, const AttemptFailed& failure,
             TimePoint now);
  TimePoint next_wakeup(TimePoint now) const;
  Headers decision_headers() const;
  void ended(std::string_view outcome, int status);

  Services& services_;
  Exchange& exchange_;
  const openai::Kind kind_;
  boost::asio::steady_timer wakeup_;
  const std::shared_ptr<Mailbox> mailbox_;  // Shared with attempts: see AttemptSpec
  TimePoint deadline_;

  bool counted_ = false;
  bool receiving_ = false;   // In the stage `received`
  uint64_t generation_ = 0;  // Of the model that has answered
  uint64_t timeline_ = 0;
  std::optional<Prepared> prepared_;
  std::optional<Answer> answer_;
  std::unordered_map<TransferId, Attempt> attempts_;
  std::vector<Pending> pending_;
  std::string decision_;  // X-Tandem-Decision, of the first prompt
  bool headers_sent_ = false;
  TimePoint last_write_{};
  std::optional<openai::ApiError> error_;
  std::string refusal_;  // Why, when error_ is a refusal
  bool end_noted_ = false;
};

}  // namespace tandem::router

// RouterMetrics: the router's own series. Created once; the handles may be used from any thread.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/config.h"
#include "common/metrics.h"

namespace tandem::router {

struct RouterMetrics {
  explicit RouterMetrics(const Config& config, const std::string& model);

  // What a client waits for, in seconds. Both the tandem_ and the vllm: names count.
  struct Twin {
    metrics::Histogram ours, alias;
    void observe(double seconds) const {
      ours.observe(seconds);
      alias.observe(seconds);
    }
  };
  Twin ttft, itl, e2e, queue_schedule;
  metrics::Histogram queue_tokenise;
  metrics::Histogram queue_prefill;  // From dispatch until the prompt is computed

  metrics::Counter prompt_tokens, completion_tokens, cached_tokens;
  metrics::Counter prompt_tokens_alias, completion_tokens_alias;
  metrics::Counter unknown_fields;

  metrics::Gauge running, waiting, running_alias, waiting_alias;
  metrics::Gauge connections, requests, tokenizer_queue, timelines;
  metrics::Gauge workers_ready;
  metrics::Gauge unconsumed_tokens;
  metrics::Gauge recommended_prefill, recommended_decode;

  // outcome: ok, client_closed, invalid, refused, failed
  void request_ended(std::string_view outcome) const;
  void request_refused(std::string_view reason) const;
  void request_recovered(std::string_view phase) const;
  void choice_finished(bool by_length) const;
  // Measured over predicted, and whether it kept to the bound that 90% should.
  void ttft_predicted(double ratio, bool within) const;
  // outcome: done, failed, timeout, lost
  void role_moved(std::string_view to, std::string_view outcome) const;

 private:
  using Family = std::map<std::string_view, metrics::Counter>;

  metrics::Counter success_stop_, success_length_;
  metrics::Histogram ttft_ratio_;
  metrics::Counter ttft_within_, ttft_beyond_;
  // By label; every label there is was made at the start, so that counting takes no lock.
  Family ended_, refused_, recovered_;
};

}  // namespace tandem::router

#include "router/router_metrics.h"

namespace tandem::router {
namespace {

using metrics::Labels;

constexpr double kRatioBounds[] = {0.25, 0.5,  0.7, 0.8, 0.85, 0.9, 0.95, 1, 1.05,
                                   1.1,  1.15, 1.2, 1.3, 1.5,  2,   3,    5, 10};

metrics::Histogram latency(std::string_view name, std::string_view help,
                           const Labels& labels = {}) {
  return metrics::histogram(name, help, metrics::kLatencyBounds, labels);
}

// The use of a limit, and the limit.
metrics::Gauge limited(std::string_view what, std::string_view help, double limit) {
  const std::string name = "tandem_router_" + std::string(what);
  metrics::gauge(name + "_max", std::string(help) + " (limit)").set(limit);
  return metrics::gauge(name, help);
}

using Family = std::map<std::string_view, metrics::Counter>;

Family family(std::string_view name, std::string_view help, const char* label,
              std::initializer_list<std::string_view> values) {
  Family made;
  for (const std::string_view value : values)
    made[value] = metrics::counter(name, help, {{label, std::string(value)}});
  return made;
}

void count(const Family& counters, std::string_view value) {
  const auto it = counters.find(value);
  (it != counters.end() ? it : counters.find("other"))->second.add();
}

}  // namespace

RouterMetrics::RouterMetrics(const Config& config, const std::string& model) {
  ended_ = family("tandem_requests_total", "Requests by outcome", "outcome",
                  {"ok", "client_closed", "invalid", "refused", "failed", "other"});
  refused_ = family(
      "tandem_refused_total", "Requests refused, by reason", "reason",
      {"queue_full",       "queue_deadline", "deadline",       "no_worker",       "too_large",
       "no_decode_worker", "slo_ttft",       "slo_impossible", "no_room",         "requests_max",
       "connections_max",  "draining",       "stage_received", "stage_tokenised", "stage_queued",
       "stage_prefill",    "stage_stream",   "stage_land",     "stage_join",      "stage_decode",
       "stage_write",      "other"});
  recovered_ = family("tandem_recovered_total", "Choices that went on after a loss, by its phase",
                      "phase", {"prefill", "decode", "other"});
  const Labels named{{"model_name", model}};
  ttft = {latency("tandem_ttft_seconds", "From a request's arrival to its first token"),
          latency("vllm:time_to_first_token_seconds", "As tandem_ttft_seconds", named)};
  itl = {latency("tandem_itl_seconds", "Gap between two tokens of one choice"),
         latency("vllm:inter_token_latency_seconds", "As tandem_itl_seconds", named)};
  e2e = {latency("tandem_request_seconds", "From a request's arrival to the end of its answer"),
         latency("vllm:e2e_request_latency_seconds", "As tandem_request_seconds", named)};
  constexpr std::string_view kQueue = "tandem_queue_seconds";
  constexpr std::string_view kQueueHelp = "How long requests waited, by stage";
  queue_tokenise = latency(kQueue, kQueueHelp, {{"stage", "tokenise"}});
  queue_schedule = {latency(kQueue, kQueueHelp, {{"stage", "schedule"}}),
                    latency("vllm:request_queue_time_seconds", "Wait for a worker", named)};
  queue_prefill = latency(kQueue, kQueueHelp, {{"stage", "prefill"}});

  prompt_tokens = metrics::counter("tandem_prompt_tokens_total", "Prompt tokens accepted");
  completion_tokens = metrics::counter("tandem_completion_tokens_total", "Tokens answered");
  cached_tokens = metrics::counter("tandem_cached_tokens_total", "Prompt tokens found in a cache");
  prompt_tokens_alias =
      metrics::counter("vllm:prompt_tokens_total", "As tandem_prompt_tokens_total", named);
  completion_tokens_alias =
      metrics::counter("vllm:generation_tokens_total", "As tandem_completion_tokens_total", named);
  unknown_fields =
      metrics::counter("tandem_unknown_fields_total", "Request fields that were ignored");
  success_stop_ = metrics::counter("vllm:request_success_total", "Finished choices",
                                   {{"model_name", model}, {"finished_reason", "stop"}});
  success_length_ = metrics::counter("vllm:request_success_total", "Finished choices",
                                     {{"model_name", model}, {"finished_reason", "length"}});

  running = metrics::gauge("tandem_requests_running", "Attempts on workers");
  running_alias = metrics::gauge("vllm:num_requests_running", "As tandem_requests_running", named);
  waiting = limited("queue", "Attempts that wait for a worker", config.scheduler.queue_max);
  waiting_alias = metrics::gauge("vllm:num_requests_waiting", "As tandem_router_queue", named);
  connections = limited("connections", "Client connections", config.router.connections_max);
  requests = limited("requests", "Requests inside the router", config.router.requests_max);
  tokenizer_queue = limited("tokenizer_queue", "Jobs that wait for a tokenizer thread",
                            config.router.requests_max);
  timelines = limited("timelines", "Requests remembered", config.router.timelines_max);
  constexpr std::string_view kPredicted = "tandem_ttft_predictions_total";
  constexpr std::string_view kPredictedHelp = "Predictions, by whether their 90% bound was kept";
  ttft_ratio_ =
      metrics::histogram("tandem_ttft_predicted_ratio",
                         "Measured time to the first token over the predicted one", kRatioBounds);
  ttft_within_ = metrics::counter(kPredicted, kPredictedHelp, {{"within", "true"}});
  ttft_beyond_ = metrics::counter(kPredicted, kPredictedHelp, {{"within", "false"}});
  metrics::gauge("tandem_unconsumed_tokens_max", "Limit of prompt tokens before the join")
      .set(config.scheduler.unconsumed_tokens_max);
  unconsumed_tokens = metrics::gauge("tandem_unconsumed_tokens",
                                     "Computed prompt tokens whose KV has not joined a batch");
  constexpr std::string_view kWanted = "tandem_recommended_replicas";
  constexpr std::string_view kWantedHelp = "Workers that the load of the last minutes needs";
  recommended_prefill = metrics::gauge(kWanted, kWantedHelp, {{"role", "prefill"}});
  recommended_decode = metrics::gauge(kWanted, kWantedHelp, {{"role", "decode"}});
  workers_ready = metrics::gauge("tandem_workers_ready", "Workers that take requests");
}

void RouterMetrics::request_ended(std::string_view outcome) const { count(ended_, outcome); }
void RouterMetrics::request_refused(std::string_view reason) const { count(refused_, reason); }
void RouterMetrics::request_recovered(std::string_view phase) const { count(recovered_, phase); }

void RouterMetrics::ttft_predicted(double ratio, bool within) const {
  ttft_ratio_.observe(ratio);
  (within ? ttft_within_ : ttft_beyond_).add();
}

void RouterMetrics::role_moved(std::string_view to, std::string_view outcome) const {
  metrics::counter("tandem_role_moves_total", "Changes of workers' roles",
                   {{"to", std::string(to)}, {"outcome", std::string(outcome)}})
      .add();
}

void RouterMetrics::choice_finished(bool by_length) const {
  (by_length ? success_length_ : success_stop_).add();
}

}  // namespace tandem::router

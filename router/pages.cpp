#include "router/pages.h"

#include <array>
#include <nlohmann/json.hpp>

#include "common/metrics.h"
#include "router/openai/render.h"

#ifndef TANDEM_VERSION
#error "the build defines TANDEM_VERSION"
#endif

namespace tandem::router {
namespace {

using nlohmann::json;

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

Response health(Services& services) {
  if (services.draining) return error_response(openai::draining());
  if (!services.pool.ready()) return error_response(openai::not_ready());
  return {.body = openai::health_body()};
}

json worker_json(const WorkerSnapshot& worker) {
  const link::Hello& hello = worker.hello;
  const link::Load& load = worker.load;
  const bool up = worker.state != "connecting" && worker.state != "refused";
  const Role role = up ? load.role : hello.role;
  return {{"name", hello.name},
          {"address", worker.address},
          {"role", role_name(role)},
          {"state", worker.state},
          {"switching_to", up ? worker.switching_to : ""},
          {"role_error", up ? load.role_error : ""},
          {"reason", worker.reason},
          {"epoch", hex(hello.epoch.value)},
          {"build", hello.build},
          {"engine", hello.engine},
          {"model", hello.model},
          {"model_digest", hello.model_digest},
          {"tokenizer_digest", hello.tokenizer_digest},
          {"kv_layout_digest", hello.kv_layout_digest},
          {"context", hello.context},
          {"transports", hello.transports},
          {"slots", up && load.slots > 0 ? load.slots : hello.slots},
          {"slots_free", up ? load.slots_free : 0},
          {"running", up ? load.running : 0},
          {"waiting", up ? load.waiting : 0},
          {"kv_tokens_capacity", load.kv_tokens_capacity},
          {"kv_tokens_used", up ? load.kv_tokens_used : 0},
          {"kv_tokens_reserved", up ? load.kv_tokens_reserved : 0},
          {"transfers_in_flight", up ? load.transfers_in_flight : 0},
          {"prefill_backlog_tokens", up ? load.prefill_backlog_tokens : 0},
          {"decode_step_ms", load.decode_step_ms},
          {"prefill_us_per_token", load.prefill_us_per_token}};
}

Response workers(Services& services) {
  json data = json::array();
  for (const WorkerSnapshot& worker : services.pool.snapshot()) data.push_back(worker_json(worker));
  const scheduler::Recommendation wanted = services.dispatcher.recommendation();
  const json whole = {
      {"object", "list"},
      {"data", data},
      {"router",
       {{"ready", services.pool.ready()},
        {"draining", services.draining.load()},
        {"requests", services.requests.load()},
        {"queued", services.dispatcher.queued()},
        {"running", services.dispatcher.running()},
        {"recommended",
         {{"prefill", wanted.prefill}, {"decode", wanted.decode}, {"reason", wanted.reason}}}}}};
  return {.body = dump(whole)};
}

Response metrics_page(Services& services) {
  services.pool.publish_metrics();
  services.metrics.tokenizer_queue.set(static_cast<double>(services.work_threads.waiting()));
  int ready = 0;
  for (const WorkerSnapshot& worker : services.pool.snapshot()) ready += worker.state == "ready";
  services.metrics.workers_ready.set(ready);
  return {.content_type = std::string(metrics::kContentType), .body = metrics::render()};
}

Response models(Services& services) {
  const std::array cards{openai::ModelCard{
      .id = services.model, .created = services.created, .context = services.config.model.context}};
  return {.body = openai::models_body(cards)};
}

// The id may hold slashes, as they are or as %2F.
std::string unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view code = text.substr(i, 3);
    if (code == "%2F" || code == "%2f") {
      out += '/';
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Response model(Services& services, std::string_view id) {
  const std::string name = unescape(id);
  if (name != services.model) return error_response(openai::model_not_found(name));
  return {.body = openai::model_body({.id = services.model,
                                      .created = services.created,
                                      .context = services.config.model.context})};
}

Response timeline(Services& services, std::string_view id) {
  std::optional<std::string> body = services.timeline.json(std::string(id));
  if (!body) return error_response(openai::not_found("No recent request has that id."));
  return {.body = std::move(*body)};
}

}  // namespace

std::optional<Response> get_page(Services& services, std::string_view path) {
  constexpr std::string_view kModels = "/models/";
  constexpr std::string_view kRequests = "/requests/";
  if (path == "/health" || path == "/ping" || path == "/health/ready") return health(services);
  if (path == "/health/live") return Response{.body = openai::health_body()};
  if (path == "/version") return Response{.body = openai::version_body(TANDEM_VERSION)};
  if (path == "/models") return models(services);
  if (path.starts_with(kModels)) return model(services, path.substr(kModels.size()));
  if (path == "/metrics") return metrics_page(services);
  if (path == "/workers") return workers(services);
  if (path.starts_with(kRequests)) return timeline(services, path.substr(kRequests.size()));
  return std::nullopt;
}

bool is_quick_page(std::string_view path) {
  return path != "/metrics" && path != "/workers" && !path.starts_with("/requests/");
}

}  // namespace tandem::router

#include "router/templates/template_renderer.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "common/log.h"
#include "router/templates/helper_process.h"

namespace tandem::templates {
namespace {

constexpr size_t kRequestBytesMax = 256u << 20;  // FRAME_BYTES_MAX of the helper
constexpr int kAttempts = 2;                     // A helper may have died while nobody looked
constexpr Duration kRestartPauseMin = std::chrono::milliseconds(100);
constexpr Duration kRestartPauseMax = std::chrono::seconds(10);

std::string request_body(std::string_view template_source, std::string_view context) {
  std::string body = "{\"template\":";
  body += nlohmann::json(template_source)
              .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  body += ",\"context\":";
  body += context;
  body += '}';
  return body;
}

// nullopt: not an answer at all.
std::optional<Result<std::string>> read_answer(const std::string& body) {
  const nlohmann::json answer = nlohmann::json::parse(body, nullptr, false);
  if (!answer.is_object()) return std::nullopt;
  if (const auto text = answer.find("text"); text != answer.end() && text->is_string())
    return text->get<std::string>();
  const auto error = answer.find("error");
  if (error == answer.end() || !error->is_string()) return std::nullopt;
  const auto raised = answer.find("raised");
  const bool refused = raised != answer.end() && raised->is_boolean() && raised->get<bool>();
  return Status(ErrorCode::kInvalidArgument, (refused ? "The chat template refused the messages: "
                                                      : "The chat template failed: ") +
                                                 error->get<std::string>());
}

}  // namespace

struct TemplateRenderer::State {
  explicit State(RendererOptions wanted) : options(std::move(wanted)) {}

  // Keeps `options.helpers` helpers alive. One thread forks them all and outlives them: see
  // HelperProcess.
  void keep_helpers();
  Result<HelperProcess> take(TimePoint deadline);
  void give_back(HelperProcess helper);
  void lose(HelperProcess helper, const Status& reason);

  const RendererOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<HelperProcess> idle;  // The rest under `mutex`
  int alive = 0;                    // Idle or in use
  bool stopping = false;
  Status start_failure;  // Why the last start failed; ok after a success
  std::thread keeper;
};

void TemplateRenderer::State::keep_helpers() {
  Duration pause = kRestartPauseMin;
  std::unique_lock lock(mutex);
  while (!stopping) {
    if (alive >= options.helpers) {
      changed.wait(lock);
      continue;
    }
    lock.unlock();
    Result<HelperProcess> helper = HelperProcess::start(options);
    lock.lock();
    start_failure = helper.status();
    if (helper.ok()) {
      idle.push_back(std::move(*helper));
      ++alive;
      pause = kRestartPauseMin;
      changed.notify_all();
      continue;
    }
    log_error("event=template_helper_failed error={}", tandem::quoted(start_failure.message()));
    changed.notify_all();
    changed.wait_for(lock, pause, [this] { return stopping; });
    pause = std::min(pause * 2, kRestartPauseMax);
  }
}

Result<HelperProcess> TemplateRenderer::State::take(TimePoint deadline) {
  std::unique_lock lock(mutex);
  const bool ready =
      changed.wait_until(lock, deadline, [this] { return stopping || !idle.empty(); });
  if (stopping) return Status(ErrorCode::kCancelled, "the template renderer is stopped");
  if (!ready) return Status(ErrorCode::kDeadlineExceeded, "no template helper was free in time");
  HelperProcess helper = std::move(idle.back());
  idle.pop_back();
  return helper;
}

void TemplateRenderer::State::give_back(HelperProcess helper) {
  {
    const std::lock_guard lock(mutex);
    if (!stopping) {
      idle.push_back(std::move(helper));
    }
  }
  changed.notify_all();
}

void TemplateRenderer::State::lose(HelperProcess helper, const Status& reason) {
  helper.kill();
  log_warn("event=template_helper_lost error={}", tandem::quoted(reason.message()));
  {
    const std::lock_guard lock(mutex);
    --alive;
  }
  changed.notify_all();
}

TemplateRenderer::TemplateRenderer(std::unique_ptr<State> state) : state_(std::move(state)) {}

TemplateRenderer::~TemplateRenderer() { stop(); }

Result<std::unique_ptr<TemplateRenderer>> TemplateRenderer::create(RendererOptions options) {
  options.helpers = std::max(options.helpers, 1);
  const TimePoint deadline = SystemClock::get().now() + options.start_deadline;
  std::unique_ptr<TemplateRenderer> renderer(
      new TemplateRenderer(std::make_unique<State>(std::move(options))));
  State& state = *renderer->state_;
  state.keeper = std::thread([&state] { state.keep_helpers(); });
  std::unique_lock lock(state.mutex);
  const bool settled = state.changed.wait_until(lock, deadline, [&state] {
    return state.alive >= state.options.helpers || !state.start_failure.ok();
  });
  const Status failure = state.start_failure;
  lock.unlock();
  if (!failure.ok()) return failure;
  if (!settled)
    return Status(ErrorCode::kDeadlineExceeded, "the template helpers did not start in time");
  return renderer;
}

Result<std::string> TemplateRenderer::render(std::string_view template_source,
                                             std::string_view context, Duration deadline) {
  const TimePoint until = SystemClock::get().now() + deadline;
  const std::string body = request_body(template_source, context);
  if (body.size() > kRequestBytesMax)
    return Status(ErrorCode::kInvalidArgument, "the messages are too long for a chat template");
  Status failure;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Result<HelperProcess> helper = state_->take(until);
    if (!helper.ok()) return helper.status();
    const Result<std::string> answer = helper->exchange(body, until);
    if (answer.ok()) {
      if (std::optional<Result<std::string>> text = read_answer(*answer)) {
        state_->give_back(std::move(*helper));
        return std::move(*text);
      }
      failure = Status(ErrorCode::kUnavailable, "the template helper answered nonsense");
    } else {
      failure = answer.status();
    }
    state_->lose(std::move(*helper), failure);
    if (failure.code() == ErrorCode::kDeadlineExceeded)
      return Status(ErrorCode::kDeadlineExceeded, "The chat template took too long.");
  }
  return failure;
}

void TemplateRenderer::stop() {
  std::vector<HelperProcess> last;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    last.swap(state_->idle);
  }
  state_->changed.notify_all();
  if (state_->keeper.joinable()) state_->keeper.join();
}

Result<RendererOptions> find_helper(std::string_view configured) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> roots;
  for (fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path(); !folder.empty();
       folder = folder.parent_path()) {
    roots.push_back(folder);
    if (folder == folder.root_path()) break;
  }
  roots.push_back(fs::current_path(error));

  const auto find = [&roots](std::string_view name) -> std::string {
    std::error_code ignored;
    for (const fs::path& root : roots) {
      if (fs::exists(root / name, ignored)) return (root / name).string();
    }
    return {};
  };
  RendererOptions options;
  options.script = find("scripts/template_helper.py");
  if (configured.empty()) {
    options.python = find(".venv/bin/python3");
  } else if (configured.find('/') != configured.npos) {
    options.python = fs::absolute(configured, error).string();
  } else {
    roots = {"/usr/local/bin", "/usr/bin", "/bin"};
    options.python = find(configured);
  }
  if (options.python.empty())
    return Status(ErrorCode::kNotFound, "no Python interpreter found: set router.python");
  if (options.script.empty())
    return Status(ErrorCode::kNotFound, "scripts/template_helper.py not found");
  return options;
}

}  // namespace tandem::templates

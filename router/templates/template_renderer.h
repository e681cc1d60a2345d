// TemplateRenderer: renders chat templates (Jinja, untrusted) in helper processes.
//
// Owned by the router. Each helper is scripts/template_helper.py under Jinja2's immutable sandbox,
// reached over a socket pair and nothing else: no inherited descriptors, an address-space limit,
// killed with its parent. A helper that loops, dies or answers nonsense is killed and replaced;
// only the request that it served notices. render() blocks and is thread-safe: call it from
// tokenizer threads, never from an I/O thread. stop() fails what waits and reaps all helpers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"

namespace tandem::templates {

struct RendererOptions {
  std::string python;  // Interpreter that has Jinja2
  std::string script;  // template_helper.py
  int helpers = 1;     // Renderings at once; others wait for a free helper
  size_t memory_bytes_max = 512u << 20;
  size_t output_bytes_max = 16u << 20;
  Duration start_deadline = std::chrono::seconds(10);
};

class TemplateRenderer {
 public:
  // Starts the helpers and waits until each has said that it is ready.
  static Result<std::unique_ptr<TemplateRenderer>> create(RendererOptions options);
  ~TemplateRenderer();

  TemplateRenderer(const TemplateRenderer&) = delete;
  TemplateRenderer& operator=(const TemplateRenderer&) = delete;

  // `context`: a JSON object (openai::build_template_context). kInvalidArgument when the template
  // is at fault or refuses the messages (raise_exception), kDeadlineExceeded when it takes too long
  // or no helper is free in time, kUnavailable when the helper died.
  Result<std::string> render(std::string_view template_source, std::string_view context,
                             Duration deadline);
  // Idempotent.
  void stop();

 private:
  struct State;
  explicit TemplateRenderer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// The interpreter and script to use: `configured` if set, else .venv/bin/python3 found from the
// program's folder upwards (or the working directory), and scripts/template_helper.py beside it.
Result<RendererOptions> find_helper(std::string_view configured);

}  // namespace tandem::templates

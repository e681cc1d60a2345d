// Templates are untrusted: one that loops, fails, eats memory or tries to get out costs its own
// request only.
#include "router/templates/template_renderer.h"

#include <dirent.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace tandem::templates {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLong = seconds(20);  // For renderings that end on their own

std::unique_ptr<TemplateRenderer> start(int helpers = 1) {
  Result<RendererOptions> options = find_helper("");
  REQUIRE_MESSAGE(options.ok(), options.status().to_string());
  options->helpers = helpers;
  options->output_bytes_max = 1 << 20;
  Result<std::unique_ptr<TemplateRenderer>> renderer = TemplateRenderer::create(*options);
  REQUIRE_MESSAGE(renderer.ok(), renderer.status().to_string());
  return std::move(*renderer);
}

// Children of this process, dead and unreaped ones included.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream stat(entry.path() / "stat");
    std::string text;
    if (!std::getline(stat, text)) continue;
    const size_t name_end = text.rfind(')');
    if (name_end == text.npos) continue;
    char state = 0;
    int parent = 0;
    if (std::sscanf(text.c_str() + name_end + 1, " %c %d", &state, &parent) == 2 &&
        parent == ::getpid())
      found.push_back(std::stoi(text));
  }
  return found;
}

TEST_CASE("a template renders with the functions and settings that models expect") {
  const auto renderer = start();
  const auto render = [&](std::string_view source, std::string_view context = "{}") {
    const Result<std::string> text = renderer->render(source, context, kLong);
    REQUIRE_MESSAGE(text.ok(), text.status().to_string());
    return *text;
  };
  CHECK(render("{{ a }} {{ b.c[1] }}", R"({"a":"x","b":{"c":[1,2]}})") == "x 2");
  CHECK(render("{% if true %}\n  a\n  {% endif %}\nb") == "  a\nb");  // trim_blocks, lstrip_blocks
  CHECK(render("{{ x | tojson }}", R"({"x":{"z":"<é'&>","a":[1,2.5,null,true]}})") ==
        R"({"z": "<é'&>", "a": [1, 2.5, null, true]})");
  CHECK(render("{{ x | tojson(indent=2) }}", R"({"x":[1]})") == "[\n  1\n]");
  CHECK(render("{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") ==
        "1");
  CHECK(render("{% generation %}x{% endgeneration %}") == "x");
  CHECK(render("{{ strftime_now('%Y') | length }}") == "4");
  CHECK(render("{% set ns = namespace(n=0) %}{% for i in [1,2] %}{% set ns.n = ns.n + i %}{% "
               "endfor %}{{ ns.n }}") == "3");
  CHECK(
      render("{{ missing }}{{ 'y' if tools is defined and tools }}", R"({"tools":null})").empty());
  CHECK(render("{{ self_ }}{{ x }}", R"({"self":1,"context":2,"x":"\ud83d\ude00"})") ==
        "\xF0\x9F\x98\x80");
}

TEST_CASE("raise_exception is the client's fault and reaches it") {
  const auto renderer = start();
  const Result<std::string> text =
      renderer->render("{{ raise_exception('roles must alternate') }}", "{}", kLong);
  CHECK(text.status().code() == ErrorCode::kInvalidArgument);
  CHECK(text.status().message() == "The chat template refused the messages: roles must alternate");
}

TEST_CASE("a template that is broken or fails says why") {
  const auto renderer = start();
  for (const char* source :
       {"{% if %}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ x.y.z }}", "{% include 'x' %}"}) {
    const Result<std::string> text = renderer->render(source, "{}", kLong);
    CHECK(text.status().code() == ErrorCode::kInvalidArgument);
    CHECK(text.status().message().starts_with("The chat template failed: "));
  }
  CHECK(renderer->render("{{ 1 }}", "not json", kLong).status().code() ==
        ErrorCode::kInvalidArgument);
  CHECK(*renderer->render("ok", "{}", kLong) == "ok");
}

TEST_CASE("attempts to leave the sandbox fail") {
  const auto renderer = start();
  const std::vector<std::string> attempts = {
      "{{ ''.__class__.__mro__[1].__subclasses__() }}",
      "{{ raise_exception.__globals__ }}",
      "{{ strftime_now.__globals__['os'].system('true') }}",
      "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
      "{{ lipsum.__globals__['os'].getpid() }}",
      "{{ (''|attr('__class__')).mro() }}",
      "{{ '{0.__class__}'.format(1) }}",
      "{{ x.append(1) }}",
      "{{ x.clear() }}",
  };
  for (const std::string& source : attempts) {
    const Result<std::string> text = renderer->render(source, R"({"x":[1]})", kLong);
    INFO(source);
    // Either an error, or undefined and so empty text; never an answer.
    if (text.ok()) CHECK(text->find("class") == std::string::npos);
    if (!text.ok()) CHECK(text.status().code() == ErrorCode::kInvalidArgument);
    if (text.ok()) CHECK(text->empty());
  }
}

TEST_CASE("a template that loops for ever is killed at its deadline and the next one is served") {
  const auto renderer = start();
  // The sandbox limits range(), not nesting.
  const std::string loop =
      "{% for a in range(90000) %}{% for b in range(90000) %}{% set x = a * b %}{% endfor %}{% "
      "endfor %}";
  const TimePoint before = SystemClock::get().now();
  const Result<std::string> text = renderer->render(loop, "{}", milliseconds(300));
  CHECK(text.status().code() == ErrorCode::kDeadlineExceeded);
  CHECK(SystemClock::get().now() - before < seconds(5));
  CHECK(*renderer->render("ok", "{}", kLong) == "ok");
  CHECK(children().size() == 1);
}

TEST_CASE("a template that eats memory or talks without end is stopped") {
  const auto renderer = start();
  const Result<std::string> memory =
      renderer->render("{{ ('a' * 2000000000) | length }}", "{}", kLong);
  CHECK(memory.status().code() == ErrorCode::kInvalidArgument);
  const Result<std::string> text =
      renderer->render("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", "{}", kLong);
  CHECK(text.status().code() == ErrorCode::kInvalidArgument);
  CHECK(*renderer->render("ok", "{}", kLong) == "ok");
}

TEST_CASE("a helper that died while idle is replaced without anybody noticing") {
  const auto renderer = start();
  const std::vector<pid_t> before = children();
  REQUIRE(before.size() == 1);
  ::kill(before[0], SIGKILL);
  siginfo_t info;
  REQUIRE(::waitid(P_PID, static_cast<id_t>(before[0]), &info, WEXITED | WNOWAIT) == 0);
  CHECK(*renderer->render("ok", "{}", kLong) == "ok");
  const std::vector<pid_t> after = children();
  REQUIRE(after.size() == 1);
  CHECK(after[0] != before[0]);
}

TEST_CASE("a helper that is stopped counts as one that loops") {
  const auto renderer = start();
  ::kill(children().at(0), SIGSTOP);
  CHECK(renderer->render("ok", "{}", milliseconds(200)).status().code() ==
        ErrorCode::kDeadlineExceeded);
  CHECK(*renderer->render("ok", "{}", kLong) == "ok");
}

TEST_CASE("many threads share few helpers") {
  const auto renderer = start(2);
  std::vector<std::thread> threads;
  std::vector<int> wrong(8, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string value = std::to_string(t * 1000 + static_cast<size_t>(i));
        const Result<std::string> text =
            renderer->render("{{ x }}", "{\"x\":" + value + "}", kLong);
        if (!text.ok() || *text != value) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::all_of(wrong.begin(), wrong.end(), [](int count) { return count == 0; }));
  CHECK(children().size() == 2);
}

TEST_CASE("helpers inherit no descriptor") {
  const int open_here = ::dup(1);  // Without O_CLOEXEC on purpose
  REQUIRE(open_here >= 3);
  const auto renderer = start();
  REQUIRE(*renderer->render("ok", "{}", kLong) == "ok");
  const std::string folder = "/proc/" + std::to_string(children().at(0)) + "/fd";
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string target = std::filesystem::read_symlink(entry.path()).string();
    sockets += target.starts_with("socket:") ? 1 : 0;
    const bool expected = target.starts_with("socket:") || target == "/dev/null";
    CHECK_MESSAGE(expected, target);
  }
  CHECK(sockets == 2);  // Descriptor 0, and the one that the helper made of it
  ::close(open_here);
}

TEST_CASE("stop ends all helpers and refuses new work") {
  const auto renderer = start(3);
  CHECK(children().size() == 3);
  renderer->stop();
  renderer->stop();
  CHECK(children().empty());
  CHECK(renderer->render("ok", "{}", kLong).status().code() == ErrorCode::kCancelled);
}

TEST_CASE("helpers die with their parent, even while they loop") {
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const auto renderer = start();
    const pid_t helper = children().at(0);
    if (::write(pipe_ends[1], &helper, sizeof helper) != sizeof helper) ::_exit(2);
    const std::string loop =
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
    static_cast<void>(renderer->render(loop, "{}", seconds(60)));
    ::_exit(1);
  }
  pid_t helper = 0;
  REQUIRE(::read(pipe_ends[0], &helper, sizeof helper) == sizeof helper);
  ::kill(parent, SIGKILL);
  REQUIRE(::waitpid(parent, nullptr, 0) == parent);
  // The helper is now init's child: it is gone, or a zombie that init has not reaped yet.
  const TimePoint deadline = SystemClock::get().now() + seconds(5);
  const auto running = [helper] {
    std::ifstream stat("/proc/" + std::to_string(helper) + "/stat");
    std::string text;
    if (!std::getline(stat, text)) return false;
    return text.compare(text.rfind(')') + 2, 1, "Z") != 0;
  };
  while (running() && SystemClock::get().now() < deadline) std::this_thread::yield();
  CHECK_FALSE(running());
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

// A helper that is ready and then sends `answer` (a Python expression) to whatever comes.
RendererOptions false_helper(const std::string& answer) {
  RendererOptions options = *find_helper("");
  options.script = std::filesystem::temp_directory_path() /
                   ("tandem_false_helper_" + std::to_string(::getpid()) + ".py");
  std::ofstream script(options.script);
  script << "import json, os, socket\n"
            "channel = socket.socket(fileno=os.dup(0))\n"
            "def frame(body): return len(body).to_bytes(4, 'little') + body\n"
            "channel.sendall(frame(json.dumps({'ready': True}).encode()))\n"
            "channel.recv(1 << 20)\n"
            "channel.sendall("
         << answer << ")\nchannel.recv(1 << 20)\n";
  options.output_bytes_max = 1 << 20;
  return options;
}

TEST_CASE("a helper that answers nonsense or lies about lengths is replaced") {
  for (const char* answer :
       {"frame(b'garbage')", "frame(b'[1]')", "frame(b'{\"text\": 5}')",
        "frame(b'{\"text\": \"\\xff\"}')", "b'\\xff\\xff\\xff\\xff'", "b'\\x00'"}) {
    INFO(answer);
    const RendererOptions options = false_helper(answer);
    auto renderer = TemplateRenderer::create(options);
    REQUIRE_MESSAGE(renderer.ok(), renderer.status().to_string());
    const Result<std::string> text = (*renderer)->render("x", "{}", seconds(1));
    CHECK_FALSE(text.ok());
    CHECK(text.status().code() != ErrorCode::kInvalidArgument);
    renderer->reset();
    CHECK(children().empty());
    std::filesystem::remove(options.script);
  }
}

TEST_CASE("a missing interpreter or script is reported at the start") {
  RendererOptions options = *find_helper("");
  options.start_deadline = seconds(5);
  options.python = "/nonexistent/python3";
  CHECK_FALSE(TemplateRenderer::create(options).ok());
  options = *find_helper("");
  options.script = "/nonexistent/helper.py";
  CHECK_FALSE(TemplateRenderer::create(options).ok());
  CHECK(children().empty());
  CHECK(find_helper("no-such-python").status().code() == ErrorCode::kNotFound);
}

}  // namespace
}  // namespace tandem::templates

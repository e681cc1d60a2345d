// How fast the real KV stream is, between two processes of this host, against what the hardware and
// UCX can do in the same run. Prints `name value` lines; bench/transfer_race.sh makes a table of
// them.
//
//   tandem-transfer-bench [goodput|latency|all] [MiB of rows, default 1024]
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <thread>

#include "common/crc32c.h"
#include "common/log.h"
#include "transfer/stream.h"

#ifdef TANDEM_BENCH_RAW_UCX
#include "transfer/bench/raw_ucx.h"
#endif

namespace tandem::transfer {
namespace {

constexpr int kRuns = 5;
constexpr int kLatencyRounds = 5000;
constexpr size_t kUnit = 128 << 10;
constexpr uint32_t kRowBytes = 4096;
constexpr int kChunk = 256;  // 1 MB per part
constexpr int kLayers = 16;
constexpr auto kDeadline = std::chrono::seconds(60);

// Shared by the two processes.
struct Control {
  std::atomic<int> phase = 0;              // The receiving process ends its part when this moves on
  std::atomic<bool> target_reads = false;  // The raw target reads each unit before it answers
};

// Length-prefixed texts between the processes.
void send_text(int fd, const std::string& text) {
  const uint64_t length = text.size();
  TANDEM_CHECK(::write(fd, &length, sizeof length) == sizeof length, "pair");
  TANDEM_CHECK(::write(fd, text.data(), length) == ssize_t(length), "pair");
}
std::string receive_text(int fd) {
  uint64_t length = 0;
  TANDEM_CHECK(::recv(fd, &length, sizeof length, MSG_WAITALL) == sizeof length, "pair");
  std::string text(length, 0);
  TANDEM_CHECK(::recv(fd, text.data(), length, MSG_WAITALL) == ssize_t(length), "pair");
  return text;
}

double us_since(TimePoint begin) {
  return std::chrono::duration<double, std::micro>(SystemClock::get().now() - begin).count();
}

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[size_t(share * double(values.size() - 1))];
}

link::Hello hello_of(const char* name) {
  link::Hello hello;
  hello.kind = "worker";
  hello.name = name;
  hello.epoch = Epoch{1};
  return hello;
}

// A run of the stream: shape, settings, and how rows are pushed.
struct Scenario {
  std::string transport;
  bool integrity = true;
  bool import = false;  // The receiver copies rows out, as an engine does
  bool latency = false;
  int tokens = 0;

  KvLayout layout() const {
    KvLayout layout;
    layout.element_type = "f16";
    if (latency) {
      layout.layers = {{.key_row_bytes = kUnit / kChunk, .value_row_bytes = 0}};
    } else {
      layout.layers.assign(kLayers, {kRowBytes, kRowBytes, 0});
    }
    return layout;
  }
  Config config() const {
    Config config;
    config.transfer.transport = transport;
    config.transfer.integrity = integrity;
    if (latency) config.transfer.landing_bytes = config.transfer.segment_bytes = 4 * kUnit;
    return config;
  }
};

class IoThread {
 public:
  ~IoThread() {
    io.stop();
    thread_.join();
  }
  boost::asio::io_context io{1};

 private:
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_ =
      boost::asio::make_work_guard(io);
  std::thread thread_{[this] { io.run(); }};
};

// The decode worker's process: takes rows until the phase moves on.
void receive_stream(const Scenario& scenario, Control& control, int pair) {
  const int phase = control.phase;
  const Config config = scenario.config();
  auto transport = make_transport(scenario.transport, config);
  TANDEM_CHECK(transport.ok(), transport.status().to_string());
  std::mutex mutex;
  std::condition_variable landed;
  IoThread io;
  auto made = make_receiver(io.io, config, scenario.layout(), {transport->get()});
  TANDEM_CHECK(made.ok(), made.status().to_string());
  Receiver& receiver = **made;
  const link::LinkContext context{config.link, "", [] { return hello_of("d0"); }};
  link::SessionHandlers handlers;
  handlers.check = [](const link::Hello&) { return Status(); };
  handlers.on_open = [](const link::SessionPtr&) {};
  handlers.on_frame = [&](const link::SessionPtr& session, link::FrameKind kind,
                          std::string_view body) { receiver.on_frame(session, kind, body); };
  handlers.on_close = [&](const link::SessionPtr& session, const Status& reason) {
    receiver.on_close(session, reason);
  };
  auto listener = link::listen(io.io, context, std::move(handlers));
  TANDEM_CHECK(listener.ok(), listener.status().to_string());
  IncomingEvents events;
  std::atomic<bool> sealed = false;
  events.on_landed = [&] { landed.notify_one(); };
  events.on_sealed = [&](const SealInfo&) { sealed = true; };
  events.on_failed = [](const Status& status) {
    log_error("event=bench_failed {}", status.to_string());
  };
  for (int run = 0; run < (scenario.latency ? 1 : kRuns); ++run) {
    const Status status =
        receiver.expect({{uint64_t(run + 1)}, "token", scenario.tokens, {}}, events);
    TANDEM_CHECK(status.ok(), status.to_string());
  }
  send_text(pair, (*listener)->address());

  // Where a thread of the transport receives, this one sleeps until rows are there.
  const bool polls = (*transport)->event_fd() >= 0;
  std::vector<std::byte> cache(1 << 20);
  uint64_t current = 1;
  while (control.phase == phase) {
    if (polls) receiver.poll();
    const auto units = receiver.take(1 << 20);
    for (const LandedUnit& unit : units) {
      if (scenario.import) std::memcpy(cache.data(), unit.bytes.data(), unit.bytes.size());
      receiver.consumed(unit);
    }
    if (units.empty() && sealed && receiver.progress_of({current}).complete) {
      sealed = false;
      receiver.finish({current++}, Status());
    } else if (units.empty() && !polls) {
      std::unique_lock lock(mutex);
      landed.wait_for(lock, std::chrono::milliseconds(1));
    }
  }
  receiver.stop();
  (*listener)->stop();
}

// One transfer of the prefill worker's process.
struct Sending {
  std::mutex mutex;
  std::condition_variable changed;
  bool granted = false;
  bool ended = false;
  Status status;
  std::shared_ptr<OutgoingStream> stream;

  Sending(Sender& sender, const std::string& address, uint64_t id, int tokens) {
    OutgoingEvents events;
    events.on_granted = [this] { set(granted); };
    events.on_done = [this] { set(ended); };
    events.on_failed = [this](const Status& reason) {
      status = reason;
      set(ended);
    };
    stream = sender.open({{id}, address, "d0", Epoch{1}, "token", tokens, {}}, std::move(events));
    await(granted);
  }
  void set(bool& flag) {
    const std::lock_guard lock(mutex);
    flag = true;
    changed.notify_all();
  }
  void await(bool& flag) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kDeadline, [&] { return flag || ended; });
    TANDEM_CHECK(flag && status.ok(), "transfer failed: " + status.to_string());
  }
};

// Rows of `bytes` bytes in all, one (chunk, layer) after the other as an engine makes them.
// Seconds.
double send_whole(Sender& sender, const std::string& address, uint64_t id, const Scenario& scenario,
                  std::span<const std::byte> rows) {
  Sending sending(sender, address, id, scenario.tokens);
  const size_t part = size_t(kChunk) * kRowBytes;
  size_t offset = 0;
  const TimePoint begin = SystemClock::get().now();
  for (int first = 0; first < scenario.tokens; first += kChunk) {
    for (int layer = 0; layer < kLayers; ++layer) {
      sending.stream->push({SeqId{0}, layer, first, kChunk, rows.subspan(offset, part),
                            rows.subspan(offset + part, part)});
      offset += 2 * part;
    }
  }
  sending.stream->seal({scenario.tokens, {}});
  sending.await(sending.ended);
  return us_since(begin) / 1e6;
}

std::vector<double> send_units(Sender& sender, const std::string& address, const Scenario& scenario,
                               std::span<const std::byte> rows) {
  Sending sending(sender, address, 1, scenario.tokens);
  std::vector<double> times;
  for (uint64_t unit = 0; unit < uint64_t(scenario.tokens / kChunk); ++unit) {
    const TimePoint begin = SystemClock::get().now();
    sending.stream->push({SeqId{0}, 0, int(unit) * kChunk, kChunk, rows.first(kUnit), {}});
    while (sending.stream->units_acknowledged() <= unit) sender.progress();
    times.push_back(us_since(begin));
  }
  sending.stream->seal({scenario.tokens, {}});
  sending.await(sending.ended);
  return times;
}

// GB/s of the median run, or microseconds of the median unit.
double send_stream(const Scenario& scenario, int pair, std::span<const std::byte> rows) {
  const std::string address = receive_text(pair);
  const Config config = scenario.config();
  auto transport = make_transport(scenario.transport, config);
  TANDEM_CHECK(transport.ok(), transport.status().to_string());
  IoThread io;
  const link::LinkContext context{config.link, "", [] { return hello_of("p0"); }};
  const auto sender = make_sender(io.io, context, config, scenario.layout(), {transport->get()});
  double result = 0;
  if (scenario.latency) {
    result = percentile(send_units(*sender, address, scenario, rows), 0.5);
  } else {
    std::vector<double> speeds;
    for (int run = 0; run < kRuns; ++run) {
      const double seconds = send_whole(*sender, address, uint64_t(run + 1), scenario, rows);
      speeds.push_back(double(rows.size()) / seconds / 1e9);
    }
    result = percentile(speeds, 0.5);
  }
  sender->stop();
  return result;
}

#ifdef TANDEM_BENCH_RAW_UCX
void receive_raw(Control& control, int pair, size_t bytes) {
  const int phase = control.phase;
  RawUcx raw;
  const std::span<const std::byte> memory = raw.allocate(bytes);
  send_text(pair, raw.address());
  send_text(pair, raw.key());
  raw.connect(receive_text(pair));
  uint64_t answered = 0;
  uint32_t crc = 0;
  while (control.phase == phase) {
    raw.poll();
    for (; answered < raw.received(); ++answered) {
      // As every receiver does that uses what it got: the bytes cross from core to core.
      if (control.target_reads) crc ^= crc32c(memory.first(kUnit));
      raw.send(std::string_view(reinterpret_cast<const char*>(&crc), sizeof crc));
    }
  }
}

struct RawFigures {
  double goodput = 0;       // GB/s of 1 MB puts
  double unit_us = 0;       // Median of a 128 KB put, its message and the answer
  double unit_read_us = 0;  // ... when the target also reads the bytes
};

RawFigures send_raw(Control& control, int pair, std::span<const std::byte> rows) {
  RawUcx raw;
  raw.connect(receive_text(pair));
  raw.attach(receive_text(pair));
  send_text(pair, raw.address());
  uint64_t sent = 0;
  const auto acknowledged = [&] {
    raw.flush();
    raw.send("landed");
    raw.await(++sent);
  };
  std::vector<double> speeds;
  for (int run = 0; run <= kRuns; ++run) {  // The first one touches the pages
    const TimePoint begin = SystemClock::get().now();
    for (size_t offset = 0; offset < rows.size(); offset += 1 << 20) {
      raw.put(offset, rows.subspan(offset, 1 << 20));
    }
    acknowledged();
    if (run > 0) speeds.push_back(double(rows.size()) / us_since(begin) / 1e3);
  }
  const auto unit_us = [&] {
    std::vector<double> times;
    for (int round = 0; round < kLatencyRounds; ++round) {
      const TimePoint begin = SystemClock::get().now();
      raw.put(0, rows.first(kUnit));
      acknowledged();
      times.push_back(us_since(begin));
    }
    return percentile(times, 0.5);
  };
  RawFigures figures{.goodput = percentile(speeds, 0.5), .unit_us = unit_us()};
  control.target_reads = true;
  figures.unit_read_us = unit_us();
  return figures;
}
#endif

double copy_speed(std::span<const std::byte> rows) {
  std::vector<std::byte> target(rows.size());
  std::vector<double> speeds;
  for (int run = 0; run < kRuns; ++run) {
    const TimePoint begin = SystemClock::get().now();
    for (size_t offset = 0; offset < rows.size(); offset += 1 << 20) {
      std::memcpy(target.data() + offset, rows.data() + offset, 1 << 20);
    }
    speeds.push_back(double(rows.size()) / us_since(begin) / 1e3);
  }
  return percentile(speeds, 0.5);
}

double crc_speed(std::span<const std::byte> rows) {
  const TimePoint begin = SystemClock::get().now();
  uint32_t crc = 0;
  for (size_t offset = 0; offset < rows.size(); offset += 1 << 20) {
    crc ^= crc32c(rows.subspan(offset, 1 << 20));
  }
  const double speed = double(rows.size()) / us_since(begin) / 1e3;
  TANDEM_CHECK(crc != 1, "keeps the sums from being optimised away");
  return speed;
}

std::vector<Scenario> scenarios(const std::string& what, int tokens) {
  std::vector<Scenario> all;
  const bool ucx = make_transport("ucx", Config{}).ok();
  if (what != "latency") {
    if (ucx) all.push_back({.transport = "ucx", .tokens = tokens});
    if (ucx) all.push_back({.transport = "ucx", .integrity = false, .tokens = tokens});
    if (ucx) all.push_back({.transport = "ucx", .import = true, .tokens = tokens});
    all.push_back({.transport = "tcp", .tokens = tokens});
    all.push_back({.transport = "tcp", .integrity = false, .tokens = tokens});
    all.push_back({.transport = "tcp", .import = true, .tokens = tokens});
  }
  if (what != "goodput") {
    for (const char* transport : {"ucx", "tcp"}) {
      if (!ucx && std::string_view(transport) == "ucx") continue;
      for (const bool integrity : {false, true}) {
        all.push_back({.transport = transport,
                       .integrity = integrity,
                       .latency = true,
                       .tokens = kLatencyRounds * kChunk});
      }
    }
  }
  return all;
}

std::string name_of(const Scenario& scenario) {
  return fmt::format("{}_{}{}{}", scenario.transport,
                     scenario.latency ? "unit_p50_us" : "goodput_gb_s",
                     scenario.integrity ? "" : "_without_crc", scenario.import ? "_imported" : "");
}

int run(const std::string& what, size_t bytes) {
  log_init("bench", LogLevel::kWarn);
  const auto chunk_bytes = size_t(kChunk) * kRowBytes * 2 * kLayers;
  const int tokens = int(std::max<size_t>(1, bytes / chunk_bytes)) * kChunk;
  bytes = size_t(tokens) * kRowBytes * 2 * kLayers;
  void* shared =
      ::mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Control& control = *new (shared) Control;
  int pair[2];
  TANDEM_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
  const pid_t child = ::fork();
  TANDEM_CHECK(child >= 0, "fork");
  const auto all = scenarios(what, tokens);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
#ifdef TANDEM_BENCH_RAW_UCX
    receive_raw(control, pair[1], bytes);
#endif
    for (const Scenario& scenario : all) receive_stream(scenario, control, pair[1]);
    return 0;
  }
  std::vector<std::byte> rows(bytes);
  for (size_t index = 0; index < rows.size(); index += 8) {
    const uint64_t word = index * 0x9E3779B97F4A7C15ull;
    std::memcpy(rows.data() + index, &word, sizeof word);
  }
  const auto report = [](const std::string& name, double value) {
    fmt::print("{} {:.2f}\n", name, value);
    std::fflush(stdout);
  };
  report("rows_mib", double(bytes >> 20));
  report("memcpy_gb_s", copy_speed(rows));
  report("crc_gb_s", crc_speed(rows));
#ifdef TANDEM_BENCH_RAW_UCX
  const RawFigures raw = send_raw(control, pair[0], rows);
  report("raw_put_gb_s", raw.goodput);
  report("raw_unit_p50_us", raw.unit_us);
  report("raw_unit_read_p50_us", raw.unit_read_us);
  ++control.phase;
#endif
  for (const Scenario& scenario : all) {
    report(name_of(scenario), send_stream(scenario, pair[0], rows));
    ++control.phase;
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace
}  // namespace tandem::transfer

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "all";
  const size_t mib = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1024;
  if ((what != "all" && what != "goodput" && what != "latency") || mib == 0) {
    fmt::print(stderr, "usage: tandem-transfer-bench [goodput|latency|all] [MiB of rows]\n");
    return 2;
  }
  return tandem::transfer::run(what, mib << 20);
}

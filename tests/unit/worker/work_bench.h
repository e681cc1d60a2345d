// A role's work on a bench: the sim engine, a router, a sender and a receiver that tests hold in
// their hands, and time that they step. No threads: what advance() does, it does here.
#pragma once

#include <boost/asio/io_context.hpp>
#include <deque>
#include <map>

#include "tests/unit/worker/test_router.h"
#include "worker/role_work.h"

namespace tandem::worker {

// A router's session: keeps what is sent to it.
class FakeRouter final : public link::Session {
 public:
  struct Frame {
    link::FrameKind kind;
    std::string body;
  };
  const link::Hello& peer() const override { return hello_; }
  Status send(link::FrameKind kind, std::string_view body) override {
    frames.push_back({kind, std::string(body)});
    return {};
  }
  int64_t queued_bytes() const override { return queued; }
  void close(Status) override {}

  // What came for one transfer so far.
  Answer answer(TransferId transfer) const {
    Answer result;
    for (const Frame& frame : frames) {
      if (frame.kind == link::FrameKind::kPrefillDone) {
        auto done = *link::PrefillDone::decode(frame.body);
        if (done.transfer == transfer) result.prefill = std::move(done);
      } else if (frame.kind == link::FrameKind::kTokens) {
        const auto tokens = *link::Tokens::decode(frame.body);
        for (const auto& entry : tokens.entries) {
          if (entry.transfer == transfer) result.tokens[entry.choice].push_back(entry.sampled);
        }
      } else if (frame.kind == link::FrameKind::kLegFailed) {
        auto failed = *link::LegFailed::decode(frame.body);
        if (failed.transfer == transfer) result.failures.push_back(std::move(failed));
      } else if (frame.kind == link::FrameKind::kLegEvent) {
        auto event = *link::LegEvent::decode(frame.body);
        if (event.transfer == transfer) result.events.push_back(std::move(event));
      }
    }
    return result;
  }

  std::vector<Frame> frames;
  int64_t queued = 0;

 private:
  link::Hello hello_;
};

// Keeps the rows that are pushed, by layer and part, as bytes.
class FakeStream final : public transfer::OutgoingStream {
 public:
  void push(const LayerRows& rows) override {
    append(rows.layer, KvPart::kKey, rows.first, rows.count, rows.key);
    append(rows.layer, KvPart::kValue, rows.first, rows.count, rows.value);
  }
  void seal(transfer::SealInfo info) override { sealed = std::move(info); }
  void abort(Status reason) override { aborted = std::move(reason); }
  uint64_t bytes_sent() const override { return 0; }
  uint64_t units_acknowledged() const override { return 0; }

  struct Unit {
    int layer;
    KvPart part;
    int first;
    int count;
    std::vector<std::byte> bytes;
  };
  std::vector<Unit> units;
  std::optional<transfer::SealInfo> sealed;
  std::optional<Status> aborted;

 private:
  void append(int layer, KvPart part, int first, int count, std::span<const std::byte> bytes) {
    units.push_back({layer, part, first, count, {bytes.begin(), bytes.end()}});
  }
};

class FakeSender final : public transfer::Sender {
 public:
  struct Open {
    transfer::OpenRequest request;
    transfer::OutgoingEvents events;
    std::shared_ptr<FakeStream> stream;
  };
  std::shared_ptr<transfer::OutgoingStream> open(const transfer::OpenRequest& request,
                                                 transfer::OutgoingEvents events) override {
    opens.push_back({request, std::move(events), std::make_shared<FakeStream>()});
    return opens.back().stream;
  }
  void progress() override {}
  int streams_open() const override { return 0; }
  transfer::TransferTotals totals() const override { return {}; }
  void stop() override {}

  std::deque<Open> opens;
};

class FakeReceiver final : public transfer::Receiver {
 public:
  struct Expected {
    transfer::Expectation expectation;
    transfer::IncomingEvents events;
    transfer::IncomingProgress progress;
    std::optional<Status> finished;
  };
  Status expect(const transfer::Expectation& expectation,
                transfer::IncomingEvents events) override {
    expected[expectation.transfer] = {expectation, std::move(events), {}, {}};
    return {};
  }
  std::vector<transfer::LandedUnit> take(size_t) override { return std::exchange(landed, {}); }
  void consumed(const transfer::LandedUnit& unit) override {
    consumed_tickets.push_back(unit.ticket);
  }
  transfer::IncomingProgress progress_of(TransferId transfer) const override {
    return expected.at(transfer).progress;
  }
  void finish(TransferId transfer, const Status& outcome) override {
    expected.at(transfer).finished = outcome;
  }
  bool poll() override { return false; }
  int streams_open() const override { return 0; }
  int64_t landing_bytes_used() const override { return 0; }
  transfer::TransferTotals totals() const override { return {}; }
  void on_frame(const link::SessionPtr&, link::FrameKind, std::string_view) override {}
  void on_close(const link::SessionPtr&, const Status&) override {}
  void stop() override {}

  std::map<TransferId, Expected> expected;
  std::vector<transfer::LandedUnit> landed;
  std::vector<uint64_t> consumed_tickets;
};

class WorkBench {
 public:
  explicit WorkBench(Role role, Config bench_config = quick_config())
      : config(std::move(bench_config)),
        engine(*make_engine(config, config.pool(role).slots, 1)),
        abort_switch(io, *engine),
        report(io, config, "bench"),
        pacer(config) {
    clock.advance(std::chrono::hours(1));
    const WorkContext context{config,       "bench", role,  *engine, inbox,
                              abort_switch, report,  pacer, clock};
    work = role == Role::kPrefill ? make_prefill_work(context, &sender)
                                  : make_decode_work(context, {.remote = &receiver});
  }

  // Hands over what the transfer layer has said.
  void deliver() {
    for (Message& message : inbox.take(TimePoint{})) {
      work->on_transfer(std::get<TransferChanged>(std::move(message)));
    }
  }
  // Advances until nothing is left to do at once.
  void settle() {
    deliver();
    while (work->advance()) deliver();
    deliver();
  }
  link::Load load() const {
    link::Load load;
    work->fill(load);
    return load;
  }
  // Nothing is held, and all sequences can be opened.
  bool is_idle() {
    const link::Load now = load();
    bool free = true;
    std::vector<SeqId> opened;
    for (int i = 0; i < engine->sequences_max() && free; ++i) {
      const auto sequence = engine->open();
      free = sequence.ok();
      if (free) opened.push_back(*sequence);
    }
    for (const SeqId sequence : opened) engine->close(sequence);
    return free && work->idle() && now.kv_tokens_used == 0 && now.kv_tokens_reserved == 0 &&
           now.running == 0 && now.waiting == 0 && now.slots_free == engine->sequences_max();
  }
  void cancel(const std::shared_ptr<FakeRouter>& from, TransferId transfer, int choice = -1) {
    work->on_cancel({from.get(), {transfer, choice, "test"}});
  }

  const Config config;
  ManualClock clock;
  boost::asio::io_context io;
  std::unique_ptr<Engine> engine;
  Inbox inbox;
  AbortSwitch abort_switch;
  LoadReport report;
  ChunkPacer pacer;
  FakeSender sender;
  FakeReceiver receiver;
  std::unique_ptr<RoleWork> work;
};

}  // namespace tandem::worker

// Peers that lie: a hand-made sender and a hand-made receiver that know the secret and the token,
// and then send what no honest one sends. The other side refuses it, ends that transfer alone, and
// stays well.
#include <doctest/doctest.h>

#include "common/crc32c.h"
#include "tests/contract/transfer/stream_fixture.h"
#include "tests/contract/transfer/transport_suite.h"
#include "transfer/stream/stream_messages.h"
#include "transfer/stream/unit_codec.h"

namespace tandem::transfer {
namespace {

constexpr uint32_t kRow = 512;
constexpr int kTokens = 64;
const std::string kToken = "0123456789abcdef";

KvLayout liar_layout() {
  KvLayout layout;
  layout.element_type = "f16";
  layout.layers.assign(2, {kRow, kRow, 0});
  return layout;
}

link::Hello liar_hello() {
  link::Hello hello;
  hello.kind = "worker";
  hello.name = "liar";
  hello.epoch = Epoch{3};
  return hello;
}

// The frames that one end of a session received.
struct Frames {
  std::mutex mutex;
  link::SessionPtr session;
  bool closed = false;
  std::vector<std::pair<link::FrameKind, std::string>> all;

  link::SessionHandlers handlers() {
    link::SessionHandlers handlers;
    handlers.check = [](const link::Hello&) { return Status(); };
    handlers.on_open = [this](const link::SessionPtr& opened) {
      const std::lock_guard lock(mutex);
      session = opened;
      closed = false;
    };
    handlers.on_frame = [this](const link::SessionPtr&, link::FrameKind kind,
                               std::string_view body) {
      const std::lock_guard lock(mutex);
      all.emplace_back(kind, body);
    };
    handlers.on_close = [this](const link::SessionPtr&, const Status&) {
      const std::lock_guard lock(mutex);
      closed = true;
    };
    return handlers;
  }
  bool is_closed() {
    const std::lock_guard lock(mutex);
    return closed;
  }
  link::SessionPtr opened() {
    const std::lock_guard lock(mutex);
    return session;
  }
  std::optional<std::string> find(link::FrameKind kind, TransferId transfer) {
    const std::lock_guard lock(mutex);
    for (const auto& [got, body] : all) {
      if (got != kind) continue;
      const bool mine =
          kind == link::FrameKind::kGranted ? GrantedMessage::decode(body)->transfer == transfer
          : kind == link::FrameKind::kOpen  ? OpenMessage::decode(body)->transfer == transfer
          : kind == link::FrameKind::kDone || kind == link::FrameKind::kQuiesced
              ? EndMessage::decode(body)->transfer == transfer
              : RefusalMessage::decode(body)->transfer == transfer;
      if (mine) return body;
    }
    return std::nullopt;
  }
};

// A sender made by hand, and an honest receiver.
struct LyingSender {
  LyingSender(const std::string& name, const KvLayout& shape)
      : layout(shape), transport(make_test_transport(name)) {
    if (!transport) return;
    Config config = test_config();
    config.transfer.progress_deadline = Milliseconds(400);
    decode.emplace(config, layout, make_test_transport(name));
    dial();
  }
  ~LyingSender() {
    if (channel) channel->close();  // Its thread may still read the rows
    if (frames && frames->opened()) frames->opened()->close(Status(ErrorCode::kCancelled, "end"));
    io.stop();
  }

  void dial() {
    frames = std::make_unique<Frames>();
    link::dial(io.io, context, decode->address(), frames->handlers());
    REQUIRE(until([&] { return frames->opened() != nullptr; }));
  }

  bool until(const std::function<bool()>& condition) {
    const TimePoint deadline = SystemClock::get().now() + kPatience;
    while (!condition()) {
      if (SystemClock::get().now() > deadline) return false;
      decode->pull();
      transport->progress();
      std::this_thread::yield();
    }
    return true;
  }

  void send(link::FrameKind kind, const std::string& body) {
    CHECK(frames->opened()->send(kind, body).ok());
  }

  // A fresh transfer up to its grant.
  void open() {
    ++id.value;
    in = decode->expect(id, kToken, kTokens);
    OpenMessage message;
    message.transfer = id;
    message.token = kToken;
    message.layout_digest = layout.digest();
    message.tokens = kTokens;
    message.process = ProcessIdentity::self();
    message.offers = {{std::string(transport->name()), transport->address()}};
    send(link::FrameKind::kOpen, message.encode());
    REQUIRE(until([&] { return frames->find(link::FrameKind::kGranted, id).has_value(); }));
    granted = *GrantedMessage::decode(*frames->find(link::FrameKind::kGranted, id));
    channel = *transport->connect(granted.address, "127.0.0.1");
    segment = *channel->attach(granted.descriptor);
  }

  // An honest unit of `count` rows.
  Unit unit(uint64_t sequence, uint64_t offset, int layer, int first, int count) {
    Unit made;
    made.sequence = sequence;
    made.offset = offset;
    made.layer = uint16_t(layer);
    made.first = uint32_t(first);
    made.count = uint32_t(count);
    made.bytes = uint32_t(count) * kRow;
    const auto bytes = std::span(rows).first(made.bytes);
    made.crc = crc32c(bytes);
    if (made.offset + made.bytes <= granted.bytes) {
      CHECK(channel->put(*segment, made.offset, bytes).ok());
    }
    return made;
  }
  void land(std::vector<Unit> units) { notify(Landed{id, granted.key, std::move(units)}.encode()); }
  void notify(std::string message) {
    CHECK(channel->notify(std::move(message), [](const Status&) {}).ok());
  }
  // The receiver ends this transfer, says so, and takes its room back once we are quiet.
  void expect_refused(ErrorCode code) {
    REQUIRE(until([&] { return in->failure().has_value(); }));
    CHECK(in->failure()->code() == code);
    REQUIRE(until([&] { return frames->find(link::FrameKind::kAbort, id).has_value(); }));
    send(link::FrameKind::kQuiesced, EndMessage{id, granted.key}.encode());
    CHECK(until([&] { return decode->receiver().landing_bytes_used() == 0; }));
  }

  const KvLayout& layout;
  std::unique_ptr<Transport> transport;
  std::optional<DecodeSide> decode;
  IoThread io;
  const LinkConfig link_config;
  const link::LinkContext context{link_config, "", [] { return liar_hello(); }};
  std::unique_ptr<Frames> frames;
  TransferId id;
  std::shared_ptr<Outcome> in;
  GrantedMessage granted;
  const std::vector<std::byte> rows = std::vector<std::byte>(kTokens * kRow, std::byte(0x77));
  std::unique_ptr<Channel> channel;  // Reads the rows

  std::shared_ptr<RemoteSegment> segment;
};

}  // namespace

TEST_CASE("a receiver refuses every lie about units") {
  const KvLayout layout = liar_layout();
  for (const std::string name : {"local", "tcp", "ucx"}) {
    CAPTURE(name);
    LyingSender liar(name, layout);
    if (!liar.transport) continue;
    const std::vector<std::pair<std::string, std::function<void(Unit&)>>> lies = {
        {"beyond the segment", [&](Unit& u) { u.offset = liar.granted.bytes - 1; }},
        {"far beyond the segment", [](Unit& u) { u.offset = UINT64_MAX - 10; }},
        {"no such layer", [](Unit& u) { u.layer = 2; }},
        {"far layer", [](Unit& u) { u.layer = 65535; }},
        {"no rows", [](Unit& u) { u.count = 0; }},
        {"no bytes", [](Unit& u) { u.bytes = 0; }},
        {"rows beyond the prompt", [](Unit& u) { u.first = kTokens - 1; }},
        {"row numbers that wrap", [](Unit& u) { u.first = UINT32_MAX; }},
        {"another length", [](Unit& u) { u.bytes += 1; }},
        {"more rows than bytes", [](Unit& u) { u.count += 1; }},
        {"a number far ahead", [](Unit& u) { u.sequence = UINT64_MAX; }},
    };
    for (const auto& [title, lie] : lies) {
      const std::string what = title;
      CAPTURE(what);
      liar.open();
      Unit unit = liar.unit(0, 0, 0, 0, 4);
      lie(unit);
      liar.land({unit});
      liar.expect_refused(ErrorCode::kInvalidArgument);
    }
    liar.open();
    Unit unit = liar.unit(0, 0, 0, 0, 4);
    unit.crc ^= 1;
    liar.land({unit});
    liar.expect_refused(ErrorCode::kDataLoss);
  }
}

TEST_CASE("a receiver refuses rows, room and numbers that were used") {
  const KvLayout layout = liar_layout();
  LyingSender liar("tcp", layout);
  SUBCASE("the same rows again") {
    liar.open();
    liar.land({liar.unit(0, 0, 0, 0, 4), liar.unit(1, 8192, 0, 3, 4)});
    liar.expect_refused(ErrorCode::kInvalidArgument);
  }
  SUBCASE("room that is still in use") {
    liar.decode->hold_units = true;
    liar.open();
    liar.land({liar.unit(0, 0, 0, 0, 4), liar.unit(1, 1024, 0, 4, 4)});
    liar.decode->release_held();
    liar.expect_refused(ErrorCode::kInvalidArgument);
  }
  SUBCASE("a number again") {
    liar.open();
    liar.land({liar.unit(0, 0, 0, 0, 4), liar.unit(0, 8192, 0, 4, 4)});
    liar.expect_refused(ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("messages of nobody are ignored") {
  const KvLayout layout = liar_layout();
  for (const std::string name : {"local", "tcp", "ucx"}) {
    CAPTURE(name);
    LyingSender liar(name, layout);
    if (!liar.transport) continue;
    liar.open();
    const Unit unit = liar.unit(0, 0, 0, 0, 4);
    liar.notify("x");
    liar.notify(std::string(1000, '\x01'));
    liar.notify(random_bytes(300));
    liar.notify(Landed{liar.id, liar.granted.key + 1, {unit}}.encode());
    liar.notify(Landed{{12345}, liar.granted.key, {unit}}.encode());
    liar.notify(Credit{liar.id, liar.granted.key, 7}.encode());
    liar.land({unit});
    CHECK(
        liar.until([&] { return liar.decode->receiver().progress_of(liar.id).bytes == 4 * kRow; }));
    CHECK(!liar.in->failure());
  }
}

TEST_CASE("a receiver refuses a seal that lists other rows than it needs") {
  const KvLayout layout = liar_layout();
  LyingSender liar("tcp", layout);
  const std::vector<uint64_t> rows(4, kTokens);
  const std::vector<uint64_t> bytes(4, kTokens * kRow);
  std::vector<SealMessage> seals(5, SealMessage{{}, 0, kTokens, rows, bytes, {}});
  seals[0].rows[2] -= 1;
  seals[1].bytes[3] += 1;
  seals[2].tokens = kTokens - 1;
  seals[3].rows.resize(2);
  seals[4].bytes.resize(6);
  for (SealMessage& seal : seals) {
    liar.open();
    seal.transfer = liar.id;
    seal.key = liar.granted.key;
    liar.send(link::FrameKind::kSeal, seal.encode());
    liar.expect_refused(ErrorCode::kDataLoss);
  }
  // Right, but the rows never come.
  liar.open();
  SealMessage seal{liar.id, liar.granted.key, kTokens, rows, bytes, {}};
  liar.send(link::FrameKind::kSeal, seal.encode());
  liar.expect_refused(ErrorCode::kDataLoss);
}

TEST_CASE("a sender that grants are wasted on is given up, and its room is kept from others") {
  const KvLayout layout = liar_layout();
  for (const std::string name : {"local", "tcp", "ucx"}) {
    CAPTURE(name);
    LyingSender liar(name, layout);
    if (!liar.transport) continue;
    liar.open();
    REQUIRE(liar.until([&] { return liar.in->failure().has_value(); }));
    CHECK(liar.in->failure()->code() == ErrorCode::kDeadlineExceeded);
    // No QUIESCED comes.
    REQUIRE(liar.until([&] { return liar.decode->receiver().landing_bytes_used() == 0; }));
    CHECK(liar.decode->receiver().totals().segments_retired == (name == "tcp" ? 0 : 1));
    for (int round = 0; round < 5; ++round) {  // More often than there are segments
      liar.open();
      liar.send(link::FrameKind::kAbort,
                RefusalMessage{liar.id, Status(ErrorCode::kCancelled, "bye")}.encode());
      liar.send(link::FrameKind::kQuiesced, EndMessage{liar.id, liar.granted.key}.encode());
      REQUIRE(liar.until([&] { return liar.decode->receiver().landing_bytes_used() == 0; }));
    }
  }
}

TEST_CASE("frames that are garbage close the session, and its transfers end") {
  const KvLayout layout = liar_layout();
  LyingSender liar("tcp", layout);
  for (const auto kind : {link::FrameKind::kOpen, link::FrameKind::kSeal, link::FrameKind::kAbort,
                          link::FrameKind::kQuiesced, link::FrameKind::kGranted}) {
    CAPTURE(int(kind));
    liar.open();
    liar.send(kind, "garbage");
    REQUIRE(liar.until([&] { return liar.in->failure().has_value(); }));
    CHECK(liar.until([&] { return liar.frames->is_closed(); }));
    CHECK(liar.until([&] { return liar.decode->receiver().landing_bytes_used() == 0; }));
    liar.dial();
  }
  liar.open();
  liar.send(link::FrameKind::kQuiesced, EndMessage{liar.id, liar.granted.key}.encode());
  CHECK(liar.until([&] { return liar.in->failure().has_value(); }));
}

TEST_CASE("a sender survives every lie of a receiver") {
  const KvLayout layout = liar_layout();
  const auto transport = make_test_transport("tcp");
  IoThread io;
  const LinkConfig link_config;
  const link::LinkContext context{link_config, "", [] { return liar_hello(); }};
  Frames frames;
  auto listener = link::listen(io.io, context, frames.handlers());
  REQUIRE(listener.ok());
  Config config = test_config();
  config.transfer.progress_deadline = Milliseconds(600);
  PrefillSide prefill(config, layout, make_test_transport("tcp"));
  auto segment = transport->allocate(1 << 16);
  REQUIRE(segment.ok());
  FakeCache source(layout, kTokens, true);

  const auto until = [&](const std::function<bool()>& condition) {
    const TimePoint deadline = SystemClock::get().now() + kPatience;
    while (!condition() && SystemClock::get().now() < deadline) {
      prefill.sender().progress();
      std::this_thread::yield();
    }
    return condition();
  };
  using Answer = std::function<void(link::Session&, GrantedMessage)>;
  const auto grant = [](link::Session& session, const GrantedMessage& granted) {
    CHECK(session.send(link::FrameKind::kGranted, granted.encode()).ok());
  };
  const std::vector<std::pair<std::string, Answer>> lies = {
      {"a descriptor that is garbage",
       [&](auto& s, auto g) {
         g.descriptor = "x";
         grant(s, g);
       }},
      {"an address that is garbage",
       [&](auto& s, auto g) {
         g.address = "x";
         grant(s, g);
       }},
      {"no room",
       [&](auto& s, auto g) {
         g.bytes = 0;
         grant(s, g);
       }},
      {"more room than there is",
       [&](auto& s, auto g) {
         g.bytes = 1ull << 40;
         grant(s, g);
       }},
      {"another transport",
       [&](auto& s, auto g) {
         g.transport = "pigeon";
         grant(s, g);
       }},
      {"another layout",
       [&](auto& s, auto g) {
         g.layout_digest = "other";
         grant(s, g);
       }},
      {"garbage", [](auto& s, auto) { CHECK(s.send(link::FrameKind::kGranted, "garbage").ok()); }},
      {"a frame of the wrong direction",
       [](auto& s, auto) { CHECK(s.send(link::FrameKind::kSeal, "garbage").ok()); }},
      {"DONE before the seal",
       [&](auto& s, auto g) {
         grant(s, g);
         CHECK(s.send(link::FrameKind::kDone, EndMessage{g.transfer, g.key}.encode()).ok());
       }},
      {"credit for what was never sent",
       [&](auto& s, auto g) {
         grant(s, g);
         CHECK(s.send(link::FrameKind::kCredit, Credit{g.transfer, g.key, 1000000}.encode()).ok());
       }},
      {"credit that is garbage",
       [&](auto& s, auto g) {
         grant(s, g);
         CHECK(s.send(link::FrameKind::kCredit, "garbage").ok());
       }},
      {"silence after the grant", [&](auto& s, auto g) { grant(s, g); }},
  };
  uint64_t id = 0;
  for (const auto& [title, lie] : lies) {
    const std::string what = title;
    CAPTURE(what);
    OpenRequest open;
    open.transfer = {++id};
    open.decode_listen = (*listener)->address();
    open.decode_epoch = Epoch{3};
    open.token = kToken;
    open.tokens = kTokens;
    std::shared_ptr<Outcome> out;
    const auto stream = prefill.open(open, out);
    for (int layer = 0; layer < 2; ++layer) stream->push(source.layer_rows(layer, 0, kTokens));
    REQUIRE(until([&] { return frames.find(link::FrameKind::kOpen, {id}).has_value(); }));
    GrantedMessage granted{
        {id}, 77, layout.digest(), "tcp", transport->address(), (*segment)->descriptor(), 1 << 16};
    lie(*frames.opened(), granted);
    REQUIRE(until([&] { return out->failure().has_value(); }));
    CHECK(out->terminal_events == 1);
    CHECK(prefill.sender().streams_open() == 0);
  }
  (*listener)->stop();
  io.stop();
}

}  // namespace tandem::transfer

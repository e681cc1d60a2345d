#include "tests/contract/transfer/stream_fixture.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "tests/contract/transfer/transport_suite.h"
#include "transfer/stream/coverage.h"

namespace tandem::transfer {
namespace {

constexpr KvPart kParts[] = {KvPart::kKey, KvPart::kValue};

link::Hello make_hello(const std::string& name, Epoch epoch) {
  link::Hello hello;
  hello.kind = "worker";
  hello.name = name;
  hello.epoch = epoch;
  return hello;
}

}  // namespace

std::mt19937_64& randomness() {
  static std::mt19937_64 generator = [] {
    const uint64_t seed = seed_from_environment();
    MESSAGE("TANDEM_SEED=" << seed);
    return std::mt19937_64(seed);
  }();
  return generator;
}

FakeCache::FakeCache(const KvLayout& shape, int rows, bool random) : layout(shape), tokens(rows) {
  for (size_t layer = 0; layer < layout.layers.size(); ++layer) {
    for (const KvPart part : kParts) {
      auto& bytes = data[{int(layer), part}];
      bytes.resize(size_t(tokens) * layout.layers[layer].row_bytes(part));
      uint64_t word = randomness()();
      for (size_t i = 0; random && i < bytes.size(); ++i) {
        if (i % 8 == 0) word = word * 6364136223846793005ull + 1442695040888963407ull;
        bytes[i] = std::byte(word >> (56 - 8 * (i % 8)));
      }
    }
  }
}

std::span<std::byte> FakeCache::rows(int layer, KvPart part, int first, int count) {
  const size_t row_bytes = layout.layers[size_t(layer)].row_bytes(part);
  return std::span(data[{layer, part}])
      .subspan(size_t(first) * row_bytes, size_t(count) * row_bytes);
}

LayerRows FakeCache::layer_rows(int layer, int first, int count) {
  return {SeqId{0},
          layer,
          first,
          count,
          rows(layer, KvPart::kKey, first, count),
          rows(layer, KvPart::kValue, first, count)};
}

bool FakeCache::holds(FakeCache& sent) {
  for (int layer = 0; layer < int(layout.layers.size()); ++layer) {
    const int first = first_row_needed(layout.layers[size_t(layer)], tokens);
    for (const KvPart part : kParts) {
      const auto mine = rows(layer, part, first, tokens - first);
      const auto theirs = sent.rows(layer, part, first, tokens - first);
      if (!std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end())) return false;
    }
  }
  return true;
}

KvLayout random_layout() {
  KvLayout layout;
  layout.element_type = "f16";
  const int layers = 1 + int(randomness()() % 8);
  for (int layer = 0; layer < layers; ++layer) {
    KvLayout::Layer shape;
    shape.key_row_bytes = uint32_t(1 + randomness()() % 3000);
    shape.value_row_bytes = uint32_t(randomness()() % 4 == 0 ? 0 : 1 + randomness()() % 3000);
    if (randomness()() % 3 == 0) shape.window = int32_t(1 + randomness()() % 400);
    layout.layers.push_back(shape);
  }
  return layout;
}

bool Outcome::is_granted() {
  const std::lock_guard lock(mutex);
  return granted;
}
bool Outcome::is_done() {
  const std::lock_guard lock(mutex);
  return done;
}
bool Outcome::is_sealed() {
  const std::lock_guard lock(mutex);
  return sealed.has_value();
}
std::optional<Status> Outcome::failure() {
  const std::lock_guard lock(mutex);
  return failed;
}

DecodeSide::DecodeSide(const Config& config, const KvLayout& layout,
                       std::unique_ptr<Transport> transport)
    : config_(config),
      layout_(layout),
      transport_(std::move(transport)),
      link_{config_.link, "", [this] { return make_hello("d0", epoch); }} {
  auto receiver = make_receiver(io_.io, config_, layout, {transport_.get()});
  REQUIRE_MESSAGE(receiver.ok(), receiver.status().to_string());
  receiver_ = *std::move(receiver);
  link::SessionHandlers handlers;
  handlers.check = [](const link::Hello&) { return Status(); };
  handlers.on_open = [this](const link::SessionPtr& session) {
    const std::lock_guard lock(mutex_);
    sessions_.push_back(session);
  };
  handlers.on_frame = [this](const link::SessionPtr& session, link::FrameKind kind,
                             std::string_view body) { receiver_->on_frame(session, kind, body); };
  handlers.on_close = [this](const link::SessionPtr& session, const Status& reason) {
    receiver_->on_close(session, reason);
  };
  auto listener = link::listen(io_.io, link_, std::move(handlers));
  REQUIRE_MESSAGE(listener.ok(), listener.status().to_string());
  listener_ = *std::move(listener);
}

DecodeSide::~DecodeSide() {
  receiver_->stop();
  listener_->stop();
  io_.stop();
  sessions_.clear();
  receiver_.reset();
}

void DecodeSide::close_sessions() {
  const std::lock_guard lock(mutex_);
  for (const auto& session : sessions_) session->close(Status(ErrorCode::kUnavailable, "test"));
  sessions_.clear();
}

std::shared_ptr<Outcome> DecodeSide::expect(TransferId transfer, const std::string& token,
                                            int tokens, Duration deadline) {
  auto outcome = std::make_shared<Outcome>();
  caches_[transfer] = std::make_unique<FakeCache>(layout_, tokens, false);
  outcomes_[transfer] = outcome;
  IncomingEvents events;
  events.on_granted = [outcome] {
    const std::lock_guard lock(outcome->mutex);
    outcome->granted = true;
  };
  events.on_landed = [] {};
  events.on_sealed = [outcome](const SealInfo& info) {
    const std::lock_guard lock(outcome->mutex);
    outcome->sealed = info;
  };
  events.on_failed = [outcome](const Status& status) {
    const std::lock_guard lock(outcome->mutex);
    outcome->failed = status;
    ++outcome->terminal_events;
  };
  const Status status = receiver_->expect({transfer, token, tokens, deadline}, std::move(events));
  if (!status.ok()) {
    const std::lock_guard lock(outcome->mutex);
    outcome->failed = status;
  }
  return outcome;
}

FakeCache& DecodeSide::cache(TransferId transfer) { return *caches_.at(transfer); }

void DecodeSide::pull() {
  receiver_->poll();
  landing_peak = std::max(landing_peak, receiver_->landing_bytes_used());
  for (const LandedUnit& unit : receiver_->take(1 << 20)) {
    const auto [lowest, first] = lowest_.emplace(unit.transfer, unit.bytes.data());
    if (!first) lowest->second = std::min(lowest->second, unit.bytes.data());
    if (hold_units) {
      held_.push_back(unit);
      continue;
    }
    import(unit);
  }
  for (const auto& [transfer, outcome] : outcomes_) {
    if (outcome->is_done() || !receiver_->progress_of(transfer).complete) continue;
    receiver_->finish(transfer, Status());
    const std::lock_guard lock(outcome->mutex);
    outcome->done = true;
    ++outcome->terminal_events;
  }
}

void DecodeSide::import(const LandedUnit& unit) {
  const auto target = cache(unit.transfer).rows(unit.layer, unit.part, unit.first, unit.count);
  REQUIRE(target.size() == unit.bytes.size());
  std::memcpy(target.data(), unit.bytes.data(), target.size());
  receiver_->consumed(unit);
}

void DecodeSide::release_held() {
  for (const LandedUnit& unit : held_) import(unit);
  held_.clear();
  hold_units = false;
}

size_t DecodeSide::held_bytes() const {
  size_t bytes = 0;
  for (const LandedUnit& unit : held_) bytes += unit.bytes.size();
  return bytes;
}

bool DecodeSide::held_equal(FakeCache& sent) const {
  return std::all_of(held_.begin(), held_.end(), [&](const LandedUnit& unit) {
    const auto rows = sent.rows(unit.layer, unit.part, unit.first, unit.count);
    return std::equal(rows.begin(), rows.end(), unit.bytes.begin(), unit.bytes.end());
  });
}

const std::byte* DecodeSide::lowest_landing(TransferId transfer) const {
  return lowest_.at(transfer);
}

void DecodeSide::forget(TransferId transfer) {
  caches_.erase(transfer);
  outcomes_.erase(transfer);
  lowest_.erase(transfer);
}

PrefillSide::PrefillSide(const Config& config, const KvLayout& layout,
                         std::unique_ptr<Transport> transport)
    : config_(config),
      transport_(std::move(transport)),
      link_{config_.link, "", [] { return make_hello("p0", Epoch{7}); }},
      sender_(make_sender(io_.io, link_, config_, layout, {transport_.get()})) {}

PrefillSide::~PrefillSide() {
  sender_->stop();
  io_.stop();
  sender_.reset();
}

std::shared_ptr<OutgoingStream> PrefillSide::open(const OpenRequest& request,
                                                  std::shared_ptr<Outcome>& outcome) {
  outcome = std::make_shared<Outcome>();
  OutgoingEvents events;
  events.on_granted = [outcome] {
    const std::lock_guard lock(outcome->mutex);
    outcome->granted = true;
  };
  events.on_done = [outcome] {
    const std::lock_guard lock(outcome->mutex);
    outcome->done = true;
    ++outcome->terminal_events;
  };
  events.on_failed = [outcome](const Status& status) {
    const std::lock_guard lock(outcome->mutex);
    outcome->failed = status;
    ++outcome->terminal_events;
  };
  return sender_->open(request, std::move(events));
}

Pair::Pair(const std::string& name, const KvLayout& shape, const Config& settings)
    : layout(shape), config(settings) {
  auto transport = make_test_transport(name);
  if (!transport) return;
  // Faults are the sender's: it is its puts that go wrong.
  decode.emplace(config, layout, make_test_transport(name.substr(name.rfind('+') + 1)));
  prefill.emplace(config, layout, std::move(transport));
}

OpenRequest Pair::request(TransferId transfer, int tokens) const {
  OpenRequest request;
  request.transfer = transfer;
  request.decode_listen = decode->address();
  request.decode_name = "d0";
  request.decode_epoch = decode->epoch;
  request.token = std::string("0123456789abcdef");
  request.tokens = tokens;
  return request;
}

void Pair::push_chunk(OutgoingStream& stream, FakeCache& cache, int first, int count) const {
  for (int layer = 0; layer < int(layout.layers.size()); ++layer) {
    stream.push(cache.layer_rows(layer, first, count));
  }
}

bool Pair::until(const std::function<bool()>& condition) {
  const TimePoint deadline = SystemClock::get().now() + kPatience;
  while (!condition()) {
    if (SystemClock::get().now() > deadline) return false;
    decode->pull();
    prefill->sender().progress();
    std::this_thread::yield();
  }
  return true;
}

bool Pair::transfer(int tokens) {
  const TransferId id{randomness()()};
  FakeCache source(layout, tokens, true);
  const OpenRequest open = request(id, tokens);
  const auto in = decode->expect(id, open.token, tokens);
  std::shared_ptr<Outcome> out;
  const auto stream = prefill->open(open, out);
  for (int first = 0; first < tokens;) {
    const int count = std::min(tokens - first, 1 + int(randomness()() % 300));
    push_chunk(*stream, source, first, count);
    first += count;
    if (randomness()() % 2 == 0) decode->pull();
  }
  stream->seal(test_seal(tokens));
  if (!until(
          [&] { return (out->is_done() && in->is_done()) || out->failure() || in->failure(); })) {
    MESSAGE("no end in time");
    return false;
  }
  if (out->failure()) MESSAGE("sender: " << out->failure()->to_string());
  if (in->failure()) MESSAGE("receiver: " << in->failure()->to_string());
  return out->is_done() && in->is_done() && decode->cache(id).holds(source) && in->sealed &&
         in->sealed->first.size() == 1 && in->sealed->tokens == tokens;
}

Config test_config() {
  Config config;
  config.transfer.landing_bytes = 1 << 20;
  config.transfer.segment_bytes = 256 << 10;
  config.transfer.unit_bytes_min = 16 << 10;
  config.transfer.grant_deadline = Milliseconds(3000);
  config.transfer.progress_deadline = Milliseconds(1500);
  return config;
}

SealInfo test_seal(int tokens) { return {tokens, {SampledToken{.token = 42, .logprob = -0.5F}}}; }

}  // namespace tandem::transfer

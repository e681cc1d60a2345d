// A prefill and a decode worker without engines: two "caches" of random bytes, a real link between
// them, a Sender and a Receiver over the transport under test, all in this process. Tests read as:
// open, push, pull, check.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/random.h"
#include "transfer/stream.h"

namespace tandem::transfer {

inline constexpr auto kPatience = std::chrono::seconds(20);

// One generator for a test program, from the printed seed.
std::mt19937_64& randomness();

// Rows of every layer and part, for `tokens` tokens.
struct FakeCache {
  FakeCache(const KvLayout& layout, int tokens, bool random);
  std::span<std::byte> rows(int layer, KvPart part, int first, int count);
  LayerRows layer_rows(int layer, int first, int count);
  // Equal in every row that a receiver needs?
  bool holds(FakeCache& sent);

  const KvLayout& layout;
  const int tokens;
  std::map<std::pair<int, KvPart>, std::vector<std::byte>> data;
};

KvLayout random_layout();

// An io_context that runs on a thread of its own.
class IoThread {
 public:
  IoThread() : thread_([this] { io.run(); }) {}
  ~IoThread() { stop(); }
  void stop() {
    io.stop();
    if (thread_.joinable()) thread_.join();
  }
  boost::asio::io_context io{1};

 private:
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_ =
      boost::asio::make_work_guard(io);
  std::thread thread_;
};

// What happened to one end of a transfer.
struct Outcome {
  std::mutex mutex;
  bool granted = false;
  bool done = false;
  std::optional<Status> failed;
  std::optional<SealInfo> sealed;
  int terminal_events = 0;

  bool is_granted();
  bool is_done();
  bool is_sealed();
  std::optional<Status> failure();
};

// A decode worker: its link port, its Receiver, and what it imports.
class DecodeSide {
 public:
  DecodeSide(const Config& config, const KvLayout& layout, std::unique_ptr<Transport> transport);
  ~DecodeSide();

  // Announces a transfer into a fresh cache.
  std::shared_ptr<Outcome> expect(TransferId transfer, const std::string& token, int tokens,
                                  Duration deadline = {});
  // Imports what has landed; finishes what is complete.
  void pull();
  FakeCache& cache(TransferId transfer);
  std::string address() const { return listener_->address(); }
  Receiver& receiver() { return *receiver_; }
  void close_sessions();
  // Units stay taken, not imported, until release_held().
  bool hold_units = false;
  void release_held();
  size_t held_bytes() const;
  // Are the rows of held units, still in landing memory, those of `sent`?
  bool held_equal(FakeCache& sent) const;
  // The lowest address at which a unit of this transfer has lain.
  const std::byte* lowest_landing(TransferId transfer) const;
  void forget(TransferId transfer);
  int64_t landing_peak = 0;
  Epoch epoch{random_u64()};

 private:
  void import(const LandedUnit& unit);

  Config config_;
  const KvLayout& layout_;
  std::unique_ptr<Transport> transport_;
  IoThread io_;
  link::LinkContext link_;
  std::unique_ptr<Receiver> receiver_;
  std::unique_ptr<link::Listener> listener_;
  std::mutex mutex_;
  std::vector<link::SessionPtr> sessions_;  // Guarded by mutex_
  std::map<TransferId, std::unique_ptr<FakeCache>> caches_;
  std::map<TransferId, std::shared_ptr<Outcome>> outcomes_;
  std::map<TransferId, const std::byte*> lowest_;
  std::deque<LandedUnit> held_;
};

class PrefillSide {
 public:
  PrefillSide(const Config& config, const KvLayout& layout, std::unique_ptr<Transport> transport);
  ~PrefillSide();

  std::shared_ptr<OutgoingStream> open(const OpenRequest& request,
                                       std::shared_ptr<Outcome>& outcome);
  Sender& sender() { return *sender_; }
  boost::asio::io_context& io() { return io_.io; }
  const link::LinkContext& link() { return link_; }

 private:
  Config config_;
  std::unique_ptr<Transport> transport_;
  IoThread io_;
  link::LinkContext link_;
  std::unique_ptr<Sender> sender_;
};

// Both, and the way of a whole transfer.
struct Pair {
  // `name`: as for make_test_transport().
  Pair(const std::string& name, const KvLayout& layout, const Config& config);
  bool usable() const { return prefill.has_value(); }

  OpenRequest request(TransferId transfer, int tokens) const;
  // Pushes every layer of [first, first + count).
  void push_chunk(OutgoingStream& stream, FakeCache& cache, int first, int count) const;
  // Pulls until the condition holds; false when patience ends.
  bool until(const std::function<bool()>& condition);
  // A whole transfer of random chunks; false, with a message, when it fails.
  bool transfer(int tokens);

  const KvLayout& layout;
  Config config;
  std::optional<DecodeSide> decode;
  std::optional<PrefillSide> prefill;
};

Config test_config();
SealInfo test_seal(int tokens);

}  // namespace tandem::transfer

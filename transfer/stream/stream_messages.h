// The frames of the stream protocol on a link session (kOpen .. kQuiesced; kLanded is not used
// there, kCredit carries a Credit of unit_codec.h). MessagePack maps; decode() checks types, ranges
// and lengths. Plain values, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/types.h"
#include "engine/sampling.h"
#include "transfer/stream/process_identity.h"

namespace tandem::transfer {

// A transport that the sender can use, and where CREDIT can be sent to.
struct Offer {
  std::string transport;
  std::string address;
};

struct OpenMessage {
  TransferId transfer;
  std::string token;
  std::string layout_digest;
  int tokens = 0;
  bool integrity = true;
  int64_t deadline_ms = 0;  // 0: none
  ProcessIdentity process;
  std::vector<Offer> offers;  // In the sender's order of preference

  std::string encode() const;
  static Result<OpenMessage> decode(std::string_view body);
};

struct GrantedMessage {
  TransferId transfer;
  uint64_t key = 0;
  std::string layout_digest;
  std::string transport;
  std::string address;
  std::string descriptor;
  uint64_t bytes = 0;

  std::string encode() const;
  static Result<GrantedMessage> decode(std::string_view body);
};

// DENIED, and ABORT in either direction.
struct RefusalMessage {
  TransferId transfer;
  Status reason;

  std::string encode() const;
  static Result<RefusalMessage> decode(std::string_view body);
};

struct SealMessage {
  TransferId transfer;
  uint64_t key = 0;
  int tokens = 0;
  // What was sent: per layer keys then values.
  std::vector<uint64_t> rows;
  std::vector<uint64_t> bytes;
  std::vector<SampledToken> first;

  std::string encode() const;
  static Result<SealMessage> decode(std::string_view body);
};

// DONE and QUIESCED. `clean`: every put of the transfer is known to have ended.
struct EndMessage {
  TransferId transfer;
  uint64_t key = 0;
  bool clean = true;

  std::string encode() const;
  static Result<EndMessage> decode(std::string_view body);
};

}  // namespace tandem::transfer

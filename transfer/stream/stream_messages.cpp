#include "transfer/stream/stream_messages.h"

#include <nlohmann/json.hpp>

#include "link/messages.h"
#include "link/pack.h"

namespace tandem::transfer {
namespace {

using link::Fields;
using link::pack_bytes;
using nlohmann::json;

constexpr size_t kTokenBytesMax = 64;
constexpr size_t kDigestBytesMax = 256;
constexpr size_t kNameBytesMax = 64;
constexpr size_t kAddressBytesMax = 8192;
constexpr size_t kTextBytesMax = 2048;
constexpr size_t kOffersMax = 16;
constexpr size_t kLayersMax = 4096;
constexpr int64_t kTokensMax = 1 << 24;
constexpr int64_t kDeadlineMaxMs = 7ll * 24 * 3600 * 1000;

}  // namespace

std::string OpenMessage::encode() const {
  json list = json::array();
  for (const Offer& offer : offers) {
    list.push_back({{"transport", offer.transport}, {"address", pack_bytes(offer.address)}});
  }
  return link::pack({{"transfer", transfer.value},
                     {"token", pack_bytes(token)},
                     {"layout", layout_digest},
                     {"tokens", tokens},
                     {"integrity", integrity},
                     {"deadline_ms", deadline_ms},
                     {"host", process.host},
                     {"pid", process.pid},
                     {"started", process.started},
                     {"offers", std::move(list)}});
}

Result<OpenMessage> OpenMessage::decode(std::string_view body) {
  OpenMessage open;
  Fields fields(body);
  fields.id("transfer", open.transfer.value);
  fields.bytes("token", open.token, 0, kTokenBytesMax);
  fields.text("layout", open.layout_digest, kDigestBytesMax);
  fields.number("tokens", open.tokens, 1, kTokensMax);
  fields.flag("integrity", open.integrity);
  fields.number("deadline_ms", open.deadline_ms, 0, kDeadlineMaxMs);
  fields.text("host", open.process.host, kTextBytesMax);
  fields.number("pid", open.process.pid, 0, 1ll << 32);
  fields.id("started", open.process.started);
  const json* offers = fields.array("offers", 1, kOffersMax);
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("open"));
  for (const json& object : *offers) {
    Offer offer;
    Fields inner(object);
    inner.text("transport", offer.transport, kNameBytesMax);
    inner.bytes("address", offer.address, 0, kAddressBytesMax);
    TANDEM_RETURN_IF_ERROR(inner.status().with_context("open"));
    open.offers.push_back(std::move(offer));
  }
  return open;
}

std::string GrantedMessage::encode() const {
  return link::pack({{"transfer", transfer.value},
                     {"key", key},
                     {"layout", layout_digest},
                     {"transport", transport},
                     {"address", pack_bytes(address)},
                     {"descriptor", pack_bytes(descriptor)},
                     {"bytes", bytes}});
}

Result<GrantedMessage> GrantedMessage::decode(std::string_view body) {
  GrantedMessage granted;
  Fields fields(body);
  fields.id("transfer", granted.transfer.value);
  fields.id("key", granted.key);
  fields.text("layout", granted.layout_digest, kDigestBytesMax);
  fields.text("transport", granted.transport, kNameBytesMax);
  fields.bytes("address", granted.address, 0, kAddressBytesMax);
  fields.bytes("descriptor", granted.descriptor, 0, kAddressBytesMax);
  fields.id("bytes", granted.bytes);
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("granted"));
  return granted;
}

std::string RefusalMessage::encode() const {
  return link::pack({{"transfer", transfer.value},
                     {"code", std::string(error_code_name(reason.code()))},
                     {"message", reason.message().substr(0, kTextBytesMax)}});
}

Result<RefusalMessage> RefusalMessage::decode(std::string_view body) {
  RefusalMessage refusal;
  std::string code;
  std::string message;
  Fields fields(body);
  fields.id("transfer", refusal.transfer.value);
  fields.text("code", code, kNameBytesMax);
  fields.text("message", message, kTextBytesMax);
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("refusal"));
  ErrorCode parsed = error_code_from_name(code);
  if (parsed == ErrorCode::kOk) parsed = ErrorCode::kInternal;
  refusal.reason = Status(parsed, std::move(message));
  return refusal;
}

std::string SealMessage::encode() const {
  // First tokens in the form that the link already has for them.
  link::PrefillDone done;
  done.first = first;
  return link::pack({{"transfer", transfer.value},
                     {"key", key},
                     {"tokens", tokens},
                     {"rows", link::pack_numbers<uint64_t>(rows)},
                     {"bytes", link::pack_numbers<uint64_t>(bytes)},
                     {"first", pack_bytes(first.empty() ? "" : done.encode())}});
}

Result<SealMessage> SealMessage::decode(std::string_view body) {
  SealMessage seal;
  std::string first;
  Fields fields(body);
  fields.id("transfer", seal.transfer.value);
  fields.id("key", seal.key);
  fields.number("tokens", seal.tokens, 1, kTokensMax);
  fields.numbers("rows", seal.rows, 2, 2 * kLayersMax);
  fields.numbers("bytes", seal.bytes, 2, 2 * kLayersMax);
  fields.bytes("first", first, 0, 1 << 20);
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("seal"));
  if (!first.empty()) {
    auto done = link::PrefillDone::decode(first);
    if (!done) return done.status().with_context("seal");
    seal.first = std::move(done->first);
  }
  return seal;
}

std::string EndMessage::encode() const {
  return link::pack({{"transfer", transfer.value}, {"key", key}, {"clean", clean}});
}

Result<EndMessage> EndMessage::decode(std::string_view body) {
  EndMessage end;
  Fields fields(body);
  fields.id("transfer", end.transfer.value);
  fields.id("key", end.key);
  fields.flag("clean", end.clean);
  TANDEM_RETURN_IF_ERROR(fields.status().with_context("end"));
  return end;
}

}  // namespace tandem::transfer

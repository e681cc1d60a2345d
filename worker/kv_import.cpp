#include "worker/kv_import.h"

#include <algorithm>

namespace tandem::worker {
namespace {

// Taken at a time; the rest waits in landing memory, which bounds it.
constexpr size_t kTakeBytes = 1 << 20;

}  // namespace

KvImport::KvImport(const WorkContext& context, transfer::Receiver& receiver, DecodeLegs& legs,
                   FailLeg fail)
    : engine_(context.engine),
      clock_(context.clock),
      receiver_(receiver),
      legs_(legs),
      fail_(std::move(fail)) {}

bool KvImport::advance(Duration budget) {
  const TimePoint until = clock_.now() + budget;
  do {
    if (taken_.empty()) {
      const auto units = receiver_.take(kTakeBytes);
      taken_.assign(units.begin(), units.end());
    }
    if (!(taken_.empty() ? reserve_ahead() : import_one())) return false;
  } while (clock_.now() < until);
  return true;
}

void KvImport::forget(TransferId transfer) {
  std::erase_if(taken_, [&](const auto& unit) { return unit.transfer == transfer; });
}

// One slice of positions, or the rows of one unit into all choices.
bool KvImport::import_one() {
  const transfer::LandedUnit unit = taken_.front();
  DecodeLeg* leg = find_leg(legs_, unit.transfer);
  if (!leg) {
    taken_.pop_front();
    receiver_.consumed(unit);
    return true;
  }
  Status status = check(*leg, unit);
  if (status.ok()) {
    // Rows may land before the grant's message has been handled.
    if (leg->state == DecodeLeg::State::kExpecting) leg->state = DecodeLeg::State::kReceiving;
    status = open_choices(engine_, *leg);
  }
  if (status.ok() && leg->rows() < unit.first + unit.count) {
    status = reserve_slice(*leg);
    if (status.ok()) return true;
  }
  if (status.ok()) status = write(*leg, unit);
  if (!status.ok()) {
    fail_(*leg, status);
    return true;
  }
  taken_.pop_front();
  receiver_.consumed(unit);
  return true;
}

Status KvImport::check(const DecodeLeg& leg, const transfer::LandedUnit& unit) const {
  const auto& layers = engine_.kv_layout().layers;
  const bool inside = unit.layer >= 0 && static_cast<size_t>(unit.layer) < layers.size() &&
                      unit.first >= 0 && unit.count > 0 && unit.count <= leg.tokens() - unit.first;
  if (!inside) return {ErrorCode::kDataLoss, "landed rows outside of the prompt"};
  const size_t bytes = size_t{layers[static_cast<size_t>(unit.layer)].row_bytes(unit.part)} *
                       static_cast<size_t>(unit.count);
  if (unit.bytes.size() != bytes) return {ErrorCode::kDataLoss, "landed rows of a wrong size"};
  if (leg.state != DecodeLeg::State::kExpecting && leg.state != DecodeLeg::State::kReceiving) {
    return {ErrorCode::kDataLoss, "rows landed after the join"};
  }
  return {};
}

// Positions for rows that have not landed yet, so that the last ones find theirs ready.
bool KvImport::reserve_ahead() {
  for (DecodeLeg& leg : legs_) {
    if (leg.state != DecodeLeg::State::kReceiving || leg.rows() >= leg.tokens()) continue;
    if (Status status = reserve_slice(leg); !status.ok()) fail_(leg, status);
    return true;
  }
  return false;
}

// For the choice that is furthest behind: many choices must not make a pause longer.
Status KvImport::reserve_slice(DecodeLeg& leg) {
  const int rows = leg.rows();
  const int count = std::min(engine_.reserve_slice(), leg.tokens() - rows);
  for (DecodeChoice& choice : leg.choices) {
    if (choice.done || choice.rows != rows) continue;
    choice.rows += count;
    return engine_.reserve(*choice.sequence, rows, count).with_context("reserving positions");
  }
  return {};
}

Status KvImport::write(DecodeLeg& leg, const transfer::LandedUnit& unit) {
  for (DecodeChoice& choice : leg.choices) {
    if (choice.done) continue;
    TANDEM_RETURN_IF_ERROR(engine_
                               .import_rows(*choice.sequence, unit.layer, unit.part, unit.first,
                                            unit.count, unit.bytes)
                               .with_context("importing rows"));
  }
  return {};
}

}  // namespace tandem::worker

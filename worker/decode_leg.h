// A decode worker's record of one leg: everything it holds, so that one release gives all of it
// back. Plain data of the engine thread.
#pragma once

#include <algorithm>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "engine/chunk_grid.h"
#include "worker/leg.h"
#include "worker/role_work.h"

namespace tandem::worker {

struct DecodeChoice {
  std::optional<SeqId> sequence;  // From the first row until the choice's end
  std::unique_ptr<Sampler> sampler;
  bool done = false;
  int rows = 0;       // Positions that exist before the join
  TokenId token = 0;  // Sampled, not yet run; goes to `position`
  int position = 0;
};

struct DecodeLeg {
  enum class State {
    kExpecting,  // Rows come from a prefill worker, none is here
    kReceiving,  // Sequences are open, rows are being imported
    kPrompt,     // The prompt runs here; waits its turn or is under way
    kStopped,    // Its chunk was aborted; only the reason is awaited
    kRunning,
  };

  link::SessionPtr router;
  link::DecodeCommand command;
  TimePoint deadline{};
  State state = State::kExpecting;
  std::vector<DecodeChoice> choices;
  transfer::Receiver* receiver = nullptr;  // Where its rows come from; null: its prompt runs here
  bool transfer_open = false;              // The Receiver must be told how it ended

  std::optional<transfer::SealInfo> seal;  // kReceiving
  bool told_first = false;                 // Its router knows that the first rows are here,
  bool told_last = false;                  // and that all are

  std::vector<Chunk> grid;  // kPrompt
  size_t next_chunk = 0;
  int64_t started_us = 0;

  TimePoint joined_at{};     // kRunning
  int steps = 0;             // Since then
  TimePoint paused_since{};  // Its router does not read; zero when it does

  const link::Leg& leg() const { return command.leg; }
  int tokens() const { return static_cast<int>(command.leg.tokens.size()); }
  int slots() const {  // Those that it still needs
    int count = 0;
    for (const DecodeChoice& choice : choices) count += choice.done ? 0 : 1;
    return count;
  }
  // The most positions that one choice may come to occupy.
  int64_t promise(int context) const {
    const int64_t emitted = tokens() - leg().prompt_count;
    return std::min<int64_t>(context, tokens() + leg().max_tokens - emitted);
  }
  // Positions that exist in every sequence that is still needed.
  int rows() const {
    int count = tokens();
    for (const DecodeChoice& choice : choices) {
      if (!choice.done) count = std::min(count, choice.rows);
    }
    return count;
  }
  bool all_done() const { return slots() == 0; }
};

using DecodeLegs = std::list<DecodeLeg>;

inline DecodeLeg* find_leg(DecodeLegs& legs, TransferId transfer) {
  for (DecodeLeg& leg : legs) {
    if (leg.leg().transfer == transfer) return &leg;
  }
  return nullptr;
}

// Opens a sequence and makes a sampler for every choice of the leg.
Status open_choices(Engine& engine, DecodeLeg& leg);
// The choice's answer has ended: its sequence is free.
void close_choice(Engine& engine, DecodeChoice& choice);
// Takes over each choice's first token, which is already with the router. Requires: one per choice.
void accept_first(Engine& engine, DecodeLeg& leg, const std::vector<SampledToken>& first,
                  TimePoint now);

}  // namespace tandem::worker

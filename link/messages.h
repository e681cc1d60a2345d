// What routers and workers say to each other. Every struct has `encode()` to a body and a static
// `decode(body)`, which checks types, ranges and lengths: a peer's lies end in kInvalidArgument,
// never in a crash. Plain values, any thread. Times named *_us are wall-clock microseconds since
// the Unix epoch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/types.h"
#include "engine/sampling.h"
#include "link/frame.h"

namespace tandem::link {

// Who dials or answers. Workers fill everything; routers fill the first block.
struct Hello {
  int protocol = kProtocolVersion;
  std::string kind;  // "router" | "worker"
  std::string name;  // "p0", "d1", "router-..."
  std::string build;
  Epoch epoch;
  std::string nonce;  // 16 random bytes, set by the session

  std::string model;  // Served name
  std::string model_digest;
  std::string tokenizer_digest;
  std::string kv_layout_digest;
  std::string engine;  // "llama" | "sim"
  Role role = Role::kDecode;
  std::string listen;  // host:port of the worker's link port, as peers reach it
  int slots = 0;
  int64_t kv_tokens = 0;  // Capacity
  int64_t kv_bytes_per_token = 0;
  int context = 0;
  int chunk_tokens = 0;
  int exact_batch_max = 1;
  std::vector<std::string> transports;  // In order of preference

  std::string encode() const;
  static Result<Hello> decode(std::string_view body);
};

// What a worker measured of one step. The same meaning as scheduler::StepSample.
struct StepSample {
  int prompt_first = 0;        // Position of the first prompt token of the step
  int prompt_tokens = 0;       // 0: a pure decode step
  int sequences = 0;           // Decoding; 0: a pure prefill chunk
  int64_t context_tokens = 0;  // Sum over the decoding sequences
  double ms = 0;
  bool operator==(const StepSample&) const = default;
};
inline constexpr size_t kSamplesMax = 64;  // In one Load; what is beyond is not sent

// Pushed by workers on change and at least every heartbeat. A hint: a grant is the authority.
struct Load {
  Role role = Role::kDecode;  // Now; while switching, still the old one
  bool draining = false;      // New legs are refused; also while switching
  // The role that the worker is about to have; empty: it stays what it is.
  std::string switching_to;
  // Why the last role command was not carried out; empty after one that was.
  std::string role_error;
  int slots = 0;  // Of this role; a change of role may change it
  int slots_free = 0;
  int running = 0;
  int waiting = 0;                 // Commands accepted, not yet started
  int64_t kv_tokens_used = 0;      // In sequences that run
  int64_t kv_tokens_reserved = 0;  // Promised to transfers and commands that have not joined
  int64_t kv_tokens_capacity = 0;
  int transfers_in_flight = 0;
  int64_t prefill_backlog_tokens = 0;  // Uncached prompt tokens accepted and not yet computed
  double decode_step_ms = 0;           // Smoothed; 0 before the first
  double prefill_us_per_token = 0;     // Smoothed; 0 before the first
  std::vector<StepSample> samples;     // Since the last Load, kSamplesMax at most
  // Totals since the worker's start, by the metric's full name with labels, e.g.
  // `tandem_kv_transfer_bytes_total{direction="in"}`. The router exports them with a worker label.
  std::map<std::string, double> counters;

  std::string encode() const;
  static Result<Load> decode(std::string_view body);
};

// What both legs of a request need to know. One per attempt and prompt.
struct Leg {
  TransferId transfer;
  std::string request;  // X-Request-Id, for logs only
  // Prompt, then tokens emitted before a resume (only with choices == 1)
  std::vector<TokenId> tokens;
  int prompt_count = 0;
  int choices = 1;  // n; choice i samples with seeds[i]
  std::vector<uint64_t> seeds;
  SamplingParams sampling;  // Its own seed is unused
  int max_tokens = 16;      // Of output per choice, those already in `tokens` included
  int64_t deadline_ms = 0;  // Remaining when sent; 0: none
  // Wished time between tokens, for pacing prompt chunks beside decode steps; 0: the worker's
  // configuration
  int64_t tpot_slo_us = 0;
};

struct PrefillCommand {
  Leg leg;
  // Where the KV goes; empty: nowhere, the answer ends with the first token.
  std::string decode_listen;
  std::string decode_name;
  Epoch decode_epoch;
  std::string token;  // One-time transfer token, 16 random bytes, equal in both commands

  std::string encode() const;
  static Result<PrefillCommand> decode(std::string_view body);
};

struct DecodeCommand {
  Leg leg;
  bool local = false;  // Run the prompt here; no transfer
  std::string token;   // As in the PrefillCommand

  std::string encode() const;
  static Result<DecodeCommand> decode(std::string_view body);
};

struct CancelCommand {
  TransferId transfer;
  int choice = -1;  // -1: the whole leg; else this choice only (its stop string was found)
  std::string reason;

  std::string encode() const;
  static Result<CancelCommand> decode(std::string_view body);
};

struct ControlCommand {
  std::string action;         // "drain" | "resume" | "role"
  Role role = Role::kDecode;  // With "role": the one to take

  std::string encode() const;
  static Result<ControlCommand> decode(std::string_view body);
};

// The prompt is computed, its KV is sent or on its way.
struct PrefillDone {
  TransferId transfer;
  std::vector<SampledToken> first;  // One per choice
  int cached_tokens = 0;
  int computed_tokens = 0;
  int64_t kv_bytes = 0;
  int64_t started_us = 0;
  int64_t ended_us = 0;

  std::string encode() const;
  static Result<PrefillDone> decode(std::string_view body);
};

// A leg ended without an answer. Terminal for that leg.
struct LegFailed {
  TransferId transfer;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  bool retryable = true;  // Might another worker, or a later attempt, succeed?

  std::string encode() const;
  static Result<LegFailed> decode(std::string_view body);
};

// Points of a request's timeline that happen on workers.
struct LegEvent {
  TransferId transfer;
  // "accepted" | "granted" | "prefill_start" | "kv_first" | "kv_last" | "landed" | "joined" |
  // "released". kv_first: the first rows are here. kv_last: all are in landing memory. landed: all
  // are in the cache.
  std::string name;
  int64_t at_us = 0;
  // With kv_last: bytes received. With kv_first and kv_last, sent by the decode worker.
  int64_t bytes = 0;
  // With kv_last: microseconds and bytes at which each tenth of the units had landed.
  std::vector<std::pair<int64_t, int64_t>> landed;

  std::string encode() const;
  static Result<LegEvent> decode(std::string_view body);
};

// One decode step's tokens for one router. Compact binary:
//   u16 count, then count times
//   u64 transfer | u8 choice | u8 finish (FinishReason) | u8 n_top | u8 has_logprob | i32 token
//   | f32 logprob (if has_logprob) | n_top times (i32 token, f32 logprob)
struct TokenEntry {
  TransferId transfer;
  int choice = 0;
  bool has_logprob = false;
  SampledToken sampled;
};
struct Tokens {
  std::vector<TokenEntry> entries;

  std::string encode() const;
  static Result<Tokens> decode(std::string_view body);
};

}  // namespace tandem::link

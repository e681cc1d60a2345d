#include "simulator/worker.h"

#include <algorithm>
#include <cmath>

#include "common/status.h"

namespace tandem::simulator {
namespace {

constexpr double kSmoothing = 0.1;      // Weight of a new value in what is reported
constexpr size_t kSamplesMax = 8;       // Between two reports
constexpr double kParkedReturn = 0.97;  // A parked sequence returns below this part of the capacity

void smooth(double& value, double now) {
  value = value > 0 ? value + kSmoothing * (now - value) : now;
}

}  // namespace

Worker::Worker(int index, WorkerSpec spec, double tpot_ms, bool keep_steps)
    : index_(index), spec_(std::move(spec)), tpot_ms_(tpot_ms), keep_steps_(keep_steps) {}

void Worker::add_prompt(const PromptJob& job, double now_s) {
  if (prompts_.empty()) progress_s_ = now_s;
  prompts_.push_back(job);
}

bool Worker::drop_prompt(const AttemptId& id) {
  const auto found = std::find_if(prompts_.begin(), prompts_.end(),
                                  [&](const PromptJob& job) { return job.id == id; });
  if (found == prompts_.end() || found->started_s >= 0) return false;
  prompts_.erase(found);
  return true;
}

double Worker::slack_ms(const Sequence& sequence, double now_s) const {
  return scheduler::tpot_slack_ms(tokens_of(sequence), sequence.tpot_ms,
                                  (now_s - sequence.first_token_s) * 1e3);
}

void Worker::start(const Sequence& sequence) {
  size_t slot = slots_.size();
  if (free_slots_.empty()) {
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  slots_[slot] = {sequence, ++serials_};
  slots_[slot].sequence.joined_step = step_;
  const int left = sequence.output_tokens - sequence.emitted;
  finishes_.push({step_ + left - 1, serials_, slot});
  ++running_;
  context_ += sequence.context;
}

// The sequence as it stands after the steps that have ended.
Sequence Worker::stop(size_t slot) {
  Sequence sequence = slots_[slot].sequence;
  const int count = static_cast<int>(step_ - sequence.joined_step);
  if (keep_steps_ && count > 0)
    stretches_.push_back({sequence.id.request, index_, sequence.joined_step, count});
  sequence.emitted += count;
  sequence.context += count;
  context_ -= sequence.context;
  slots_[slot].serial = 0;
  free_slots_.push_back(slot);
  --running_;
  return sequence;
}

// Takes in what has arrived or was parked, while there is room.
void Worker::admit(double now_s) {
  while (!parked_.empty() && parked_.front().ready_s <= now_s && running_ < spec_.decode_slots) {
    const auto limit =
        static_cast<int64_t>(kParkedReturn * static_cast<double>(spec_.costs.kv_tokens_capacity));
    const int64_t context = parked_.front().sequence.context;
    if (running_ > 0 && context_ + prompt_context_ + context > limit) break;
    start(parked_.front().sequence);
    parked_.pop_front();
  }
  while (!arrived_.empty() && running_ < spec_.decode_slots &&
         (fits(arrived_.front().context) || (running_ == 0 && parked_.empty()))) {
    start(arrived_.front());
    arrived_.pop_front();
  }
}

void Worker::begin_prompt(PromptJob& job, double now_s, StepStart& out) {
  job.started_s = now_s;
  const int found = spec_.block_tokens > 0 ? cache_.match(job.blocks) * spec_.block_tokens : 0;
  job.cached = std::min(found, job.tokens - 1);
  job.done = job.cached;
  prompt_context_ += job.tokens;
  out.started.push_back(job);
}

// The prompt tokens of the next step: whole prompts where nothing decodes on a prefill worker, else
// as many as the chunk size or the targets allow, from the oldest prompts.
void Worker::plan_prompts(double now_s, StepStart& out) {
  parts_.clear();
  int64_t pending = 0;
  for (const PromptJob& job : prompts_) pending += job.tokens - job.done;
  if (pending == 0) return;
  int budget = 0;
  const bool whole = spec_.role == Role::kPrefill && running_ == 0;
  if (!whole) {
    slacks_.clear();
    scheduler::PacingOptions options;
    if (spec_.role == Role::kCoupled) options.chunk_tokens = spec_.chunk_tokens;
    if (options.chunk_tokens == 0)
      for (const Slot& slot : slots_)
        if (slot.serial > 0) slacks_.push_back(slack_ms(slot.sequence, now_s));
    budget = scheduler::plan_prompt_tokens(
        {.batch = running_,
         .context_tokens = context_,
         .slack_ms = slacks_,
         .tpot_ms = tpot_ms_,
         .prompt_first = prompts_.front().done,
         .prompt_pending = static_cast<int>(std::min<int64_t>(pending, 1 << 30)),
         .prompt_waited_ms = (now_s - progress_s_) * 1e3},
        options, spec_.costs);
  }
  for (size_t i = 0; i < prompts_.size(); ++i) {
    PromptJob& job = prompts_[i];
    if (!whole && budget <= 0) break;
    if (job.started_s < 0) {
      const bool room = fits(job.tokens) || (running_ == 0 && i == 0);
      if (!room) break;
      if (whole && i > 0 && budget + job.tokens > spec_.prefill_batch_tokens) break;
      begin_prompt(job, now_s, out);
    }
    const int left = job.tokens - job.done;
    const int tokens = whole ? left : std::min(budget, left);
    budget += whole ? left : -tokens;
    parts_.push_back({i, tokens});
    progress_s_ = now_s;
  }
}

// One step of all parts: the cost model's mixed step, with one chunk overhead and every part's own
// quadratic term.
double Worker::step_ms() {
  if (parts_.empty()) return spec_.costs.decode_ms(running_, static_cast<double>(context_));
  double tokens = 0, square_ms = 0;
  for (const Part& part : parts_) {
    const PromptJob& job = prompts_[part.prompt];
    const double n = part.tokens;
    square_ms += spec_.costs.prefill_per_token2_us * n * (n + 2.0 * job.done) / 1e3;
    tokens += n;
  }
  const double first_square = spec_.costs.prefill_per_token2_us * tokens * tokens / 1e3;
  return spec_.costs.mixed_ms(0, tokens, running_, static_cast<double>(context_)) - first_square +
         square_ms;
}

std::optional<StepStart> Worker::begin_step(double now_s) {
  TANDEM_CHECK(!busy_, "a step is running");
  admit(now_s);
  StepStart out;
  plan_prompts(now_s, out);
  if (running_ == 0 && parts_.empty()) return std::nullopt;
  const double ms = step_ms();
  sample(ms);
  out.seconds = ms / 1e3;
  busy_ = true;
  step_began_s_ = now_s;
  return out;
}

void Worker::sample(double ms) {
  int tokens = 0;
  for (const Part& part : parts_) tokens += part.tokens;
  if (tokens == 0) smooth(decode_step_ms_, ms);
  if (tokens > 0) {
    const double decode = spec_.costs.decode_ms(running_, static_cast<double>(context_));
    smooth(prefill_us_per_token_, (ms - decode) * 1e3 / tokens);
  }
  // A step of several prompts is no sample: it has no single first position.
  if (samples_.size() >= kSamplesMax || parts_.size() > 1) return;
  samples_.push_back({.prompt_first = parts_.empty() ? 0 : prompts_[parts_[0].prompt].done,
                      .prompt_tokens = tokens,
                      .sequences = running_,
                      .context_tokens = context_,
                      .ms = ms});
}

void Worker::end_step(double now_s, StepEnd& out) {
  busy_ = false;
  busy_s_ += now_s - step_began_s_;
  if (keep_steps_) step_ends_.push_back(now_s);
  context_ += running_;
  const int64_t ended = step_++;
  while (!finishes_.empty() && finishes_.top().step <= ended) {
    const Finish finish = finishes_.top();
    finishes_.pop();
    if (slots_[finish.slot].serial != finish.serial) continue;
    out.sequences.push_back(stop(finish.slot));
    keep(out.sequences.back().blocks);
  }
  for (const Part& part : parts_) prompts_[part.prompt].done += part.tokens;
  parts_.clear();
  while (!prompts_.empty() && prompts_.front().started_s >= 0 &&
         prompts_.front().done == prompts_.front().tokens) {
    out.prompts.push_back(prompts_.front());
    prompts_.pop_front();
    prompt_context_ -= out.prompts.back().tokens;
    keep(out.prompts.back().blocks);
  }
  while (context_ + prompt_context_ > spec_.costs.kv_tokens_capacity && running_ > 1) park(now_s);
}

// The sequence that is furthest ahead of its target moves to host memory until there is room.
void Worker::park(double now_s) {
  size_t richest = slots_.size();
  double most = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].serial == 0) continue;
    const double slack = slack_ms(slots_[i].sequence, now_s);
    if (richest == slots_.size() || slack > most) richest = i, most = slack;
  }
  const Sequence sequence = stop(richest);
  const double bytes = static_cast<double>(sequence.context * spec_.costs.kv_bytes_per_token);
  parked_.push_back({sequence, now_s + 2 * bytes / spec_.host_bytes_per_second});
  ++parked_total_;
}

std::optional<double> Worker::wake_s(double now_s) const {
  if (parked_.empty() || parked_.front().ready_s <= now_s) return std::nullopt;
  return parked_.front().ready_s;
}

std::vector<Sequence> Worker::evict_sequences(double now_s) {
  TANDEM_CHECK(!busy_, "a step is running");
  admit(now_s);
  std::vector<Sequence> out;
  for (size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].serial > 0) out.push_back(stop(i));
  for (const Parked& parked : parked_) out.push_back(parked.sequence);
  out.insert(out.end(), arrived_.begin(), arrived_.end());
  parked_.clear();
  arrived_.clear();
  return out;
}

std::vector<PromptJob> Worker::evict_prompts() {
  TANDEM_CHECK(!busy_, "a step is running");
  std::vector<PromptJob> out(prompts_.begin(), prompts_.end());
  prompts_.clear();
  prompt_context_ = 0;
  return out;
}

void Worker::keep(std::span<const uint64_t> blocks) {
  if (spec_.block_tokens > 0) cache_.store(blocks, cache_blocks_max(), events_);
}

// Running sequences are taken to share the blocks of their prompts with the cache; what they have
// beyond, and prompts in progress, is not available to it.
int64_t Worker::cache_blocks_max() const {
  const int64_t live = context_ + prompt_context_;
  return std::max<int64_t>(0, spec_.costs.kv_tokens_capacity - live) / spec_.block_tokens;
}

scheduler::WorkerState Worker::report(bool accepting) const {
  scheduler::WorkerState state;
  state.name = spec_.name;
  state.role = spec_.role;
  state.accepting = accepting;
  const bool prefill = spec_.role == Role::kPrefill;
  state.slots = prefill ? spec_.prefill_slots : spec_.decode_slots;
  const int held = static_cast<int>(arrived_.size() + parked_.size() + prompts_.size());
  state.slots_free = std::max(0, state.slots - running_ - promised_ - held);
  state.kv_tokens_capacity = spec_.costs.kv_tokens_capacity;
  state.kv_tokens_used = context_ + prompt_context_;
  state.kv_tokens_reserved = promised_tokens_;
  for (const Sequence& sequence : arrived_) state.kv_tokens_reserved += sequence.context;
  for (const Parked& parked : parked_) state.kv_tokens_reserved += parked.sequence.context;
  for (const PromptJob& job : prompts_) {
    if (job.local && job.started_s < 0) state.kv_tokens_reserved += job.tokens;
    state.prefill_backlog_tokens += job.tokens - job.done;
  }
  state.decode_step_ms = decode_step_ms_;
  state.prefill_us_per_token = prefill_us_per_token_;
  return state;
}

}  // namespace tandem::simulator

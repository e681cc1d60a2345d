#include "engine/llama/llama_sampling.h"

#include <cmath>
#include <limits>

#include "engine/logprobs.h"

namespace tandem {

namespace {

bool greedy(const SamplingParams& params) { return params.temperature == 0 || params.top_p == 0; }

// The last link of the chain: one draw from what the filters left, with the choice's next random
// number. Weights are added up in double in the candidates' order, which is a function of the
// logits alone.
void apply_draw(llama_sampler* sampler, llama_token_data_array* candidates) {
  const auto& choice = *static_cast<const Choice*>(sampler->ctx);
  float most = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < candidates->size; ++i) most = std::max(most, candidates->data[i].logit);
  double total = 0;
  for (size_t i = 0; i < candidates->size; ++i) {
    const float weight = std::exp(candidates->data[i].logit - most);
    candidates->data[i].p = weight;
    total += static_cast<double>(weight);
  }
  double left = choice.next_uniform() * total;
  candidates->selected = 0;
  for (size_t i = 0; i < candidates->size; ++i) {
    const auto weight = static_cast<double>(candidates->data[i].p);
    if (!(weight > 0)) continue;
    candidates->selected =
        static_cast<int64_t>(i);  // Rounding may leave a little at the end: the last one takes it
    if (left < weight) break;
    left -= weight;
  }
}

const char* draw_name(const llama_sampler*) { return "counter-draw"; }

llama_sampler* make_draw(Choice* choice) {
  static llama_sampler_i interface = [] {
    llama_sampler_i made{};
    made.name = draw_name;
    made.apply = apply_draw;
    return made;
  }();
  return llama_sampler_init(&interface, choice);
}

}  // namespace

LlamaChoice::LlamaChoice(std::unique_ptr<Choice> choice) : choice_(std::move(choice)) {
  const SamplingParams& params = choice_->params();
  if (greedy(params)) return;
  llama_sampler_chain_params chain_params = llama_sampler_chain_default_params();
  chain_params.no_perf = true;
  chain_.reset(llama_sampler_chain_init(chain_params));
  const auto add = [this](llama_sampler* link) { llama_sampler_chain_add(chain_.get(), link); };
  add(llama_sampler_init_temp(static_cast<float>(params.temperature)));
  if (params.min_p > 0) add(llama_sampler_init_min_p(static_cast<float>(params.min_p), 1));
  if (params.top_k > 0) add(llama_sampler_init_top_k(params.top_k));
  if (params.top_p < 1) add(llama_sampler_init_top_p(static_cast<float>(params.top_p), 1));
  add(make_draw(choice_.get()));
}

SampledToken LlamaChoice::sample(std::span<const float> logits,
                                 std::vector<llama_token_data>& scratch) {
  SampledToken sampled;
  sampled.token = chain_ == nullptr ? best(logits) : draw(logits, scratch);
  sampled.finish = choice_->finish_of(sampled.token);
  if (choice_->params().logprobs >= 0) {
    set_logprobs(logits, {}, choice_->params().logprobs, sampled);
  }
  choice_->accept(sampled.token);
  return sampled;
}

TokenId LlamaChoice::best(std::span<const float> logits) const {
  // The raw best, looked for among the tokens that nothing adjusts, against the adjusted ones.
  // Ties: least id.
  TokenId best = -1;
  float best_logit = -std::numeric_limits<float>::infinity();
  const auto offer = [&](TokenId token, float logit) {
    if (logit > best_logit || (logit == best_logit && (best < 0 || token < best))) {
      best = token;
      best_logit = logit;
    }
  };
  if (choice_->plain()) {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > best_logit) offer(static_cast<TokenId>(i), logits[i]);
    }
  } else {
    std::vector<bool> adjusted(logits.size());
    choice_->for_each_adjusted([&](TokenId token) {
      adjusted[static_cast<size_t>(token)] = true;
      offer(token, choice_->adjusted(token, logits[static_cast<size_t>(token)]));
    });
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] >= best_logit && !adjusted[i]) offer(static_cast<TokenId>(i), logits[i]);
    }
  }
  return best < 0 ? 0 : best;
}

TokenId LlamaChoice::draw(std::span<const float> logits, std::vector<llama_token_data>& scratch) {
  scratch.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    scratch[i] = {static_cast<TokenId>(i), logits[i], 0.0f};
  }
  choice_->for_each_adjusted([&](TokenId token) {
    const auto i = static_cast<size_t>(token);
    scratch[i].logit = choice_->adjusted(token, logits[i]);
  });
  llama_token_data_array candidates{scratch.data(), scratch.size(), -1, false};
  llama_sampler_apply(chain_.get(), &candidates);
  if (candidates.selected < 0 || candidates.size == 0) return best(logits);
  return candidates.data[candidates.selected].id;
}

}  // namespace tandem

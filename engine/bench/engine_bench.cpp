// What the Engine interface costs: prompts and decode steps through it against a bare loop on the
// same library, weights, threads and batches. The two take turns; each turn's CPU times give one
// ratio, and the median ratio is printed: 1.00 means as fast as bare libllama, above it faster.
//
//   tandem-engine-bench [model.gguf] [rounds]
#include <ctime>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "common/log.h"
#include "engine/chunk_grid.h"
#include "engine/engine.h"
#include "engine/llama/llama_model.h"

namespace tandem {
namespace {

constexpr int kSlots = 8;
constexpr int kContext = 1024;
constexpr int kPrompt = 512;
constexpr int kDecodeContext = 128;
constexpr int kSteps = 16;

// One compute thread: its CPU time is the work done, whatever else the machine does.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double timed(const std::function<void()>& work) {
  const double begin = cpu_seconds();
  work();
  return cpu_seconds() - begin;
}

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "tandem-engine-bench: %s\n", status.to_string().c_str());
  std::exit(1);
}

TokenId token_at(int i) { return 1000 + i * 37 % 20000; }

std::vector<TokenId> prompt(int count) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(token_at(i));
  return tokens;
}

// The loop that a user of the library would write.
class Bare {
 public:
  explicit Bare(const std::string& path) {
    Result<LoadedModel> loaded = load_llama_model(path);
    must(loaded.status());
    model_ = std::move(loaded->model);
    llama_context_params params = llama_context_default_params();
    params.n_seq_max = kSlots;
    params.n_ctx = kContext * kSlots;
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.swa_full = true;
    params.no_perf = true;
    context_.reset(llama_init_from_model(model_.get(), params));
    batch_ = llama_batch_init(512, 0, 1);
  }
  ~Bare() { llama_batch_free(batch_); }
  Bare(const Bare&) = delete;
  Bare& operator=(const Bare&) = delete;

  void clear() { llama_memory_clear(llama_get_memory(context_.get()), false); }

  void prefill(int sequence, const std::vector<TokenId>& tokens) {
    for (const Chunk& chunk : chunk_grid(static_cast<int>(tokens.size()), 0, 256, 1)) {
      batch_.n_tokens = 0;
      for (int i = chunk.first; i < chunk.first + chunk.count; ++i) {
        add(sequence, tokens[static_cast<size_t>(i)], i, i + 1 == static_cast<int>(tokens.size()));
      }
      run();
    }
    best(-1);
  }

  void decode(int sequences, int position) {
    batch_.n_tokens = 0;
    for (int s = 0; s < sequences; ++s) add(s, token_at(position + s), position, true);
    run();
    for (int s = 0; s < sequences; ++s) best(s);
  }

 private:
  void add(int sequence, TokenId token, int position, bool logits) {
    const int i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = logits;
  }
  void run() {
    if (llama_decode(context_.get(), batch_) != 0)
      must(Status(ErrorCode::kInternal, "llama_decode failed"));
  }
  void best(int index) {
    const float* logits = llama_get_logits_ith(context_.get(), index);
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
    checksum_ += std::max_element(logits, logits + vocab) - logits;
  }

  LlamaModel model_;
  LlamaContext context_;
  llama_batch batch_{};
  long checksum_ = 0;  // Keeps the compiler from dropping the search
};

class CountBytes final : public KvObserver {
 public:
  void on_layer(const LayerRows& rows) override { bytes += rows.key.size() + rows.value.size(); }
  size_t bytes = 0;
};

class Through {
 public:
  explicit Through(const std::string& path) {
    Config config;
    config.model.path = path;
    config.model.context = kContext;
    Result<std::unique_ptr<Engine>> made = make_engine(config, kSlots, 1);
    must(made.status());
    engine_ = *std::move(made);
    params_.temperature = 0;
  }

  void clear() {
    for (const SeqId sequence : open_) engine_->close(sequence);
    open_.clear();
    samplers_.clear();
  }

  void prefill(const std::vector<TokenId>& tokens, KvObserver* observer) {
    const SeqId sequence = *engine_->open();
    open_.push_back(sequence);
    const int total = static_cast<int>(tokens.size());
    for (const Chunk& chunk : chunk_grid(total, 0, 256, 1)) {
      must(engine_->prefill(sequence,
                            std::span(tokens).subspan(static_cast<size_t>(chunk.first),
                                                      static_cast<size_t>(chunk.count)),
                            chunk.first, chunk.first + chunk.count == total, observer));
    }
    samplers_.push_back(*engine_->make_sampler(params_, tokens, total));
    must(engine_->sample(sequence, *samplers_.back()).status());
  }

  void decode(int sequences, int position) {
    std::vector<DecodeInput> inputs;
    for (int s = 0; s < sequences; ++s) {
      inputs.push_back({open_[static_cast<size_t>(s)], token_at(position + s), position});
    }
    must(engine_->decode(inputs));
    for (int s = 0; s < sequences; ++s) {
      const auto i = static_cast<size_t>(s);
      must(engine_->sample(open_[i], *samplers_[i]).status());
    }
  }

 private:
  std::unique_ptr<Engine> engine_;
  SamplingParams params_;
  std::vector<SeqId> open_;
  std::vector<std::unique_ptr<Sampler>> samplers_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Runs both `rounds` times, in turns that swap who goes first.
void compare(const char* name, double units, int rounds, const std::function<double()>& bare,
             const std::function<double()>& engine) {
  std::vector<double> bare_times, engine_times, ratios;
  for (int round = 0; round < rounds; ++round) {
    const bool swap = round % 2 == 1;
    double first = swap ? engine() : bare();
    double second = swap ? bare() : engine();
    if (swap) std::swap(first, second);
    bare_times.push_back(first);
    engine_times.push_back(second);
    ratios.push_back(first / second);
  }
  std::printf("%-26s %10.1f %10.1f %8.3f\n", name, units / median(bare_times),
              units / median(engine_times), median(ratios));
  std::fflush(stdout);
}

void bench(const std::string& path, int rounds) {
  Bare bare(path);
  Through engine(path);
  const std::vector<TokenId> long_prompt = prompt(kPrompt);
  std::printf("%s, 1 thread, %d rounds, tokens per CPU second\n%-26s %10s %10s %8s\n", path.c_str(),
              rounds, "", "bare", "engine", "ratio");
  const auto bare_prefill = [&] {
    bare.clear();
    return timed([&] { bare.prefill(0, long_prompt); });
  };
  CountBytes observer;
  for (KvObserver* watch :
       {static_cast<KvObserver*>(nullptr), static_cast<KvObserver*>(&observer)}) {
    compare(watch == nullptr ? "prefill 512" : "prefill 512, observed", kPrompt, rounds,
            bare_prefill, [&] {
              engine.clear();
              return timed([&] { engine.prefill(long_prompt, watch); });
            });
  }
  const std::vector<TokenId> short_prompt = prompt(kDecodeContext);
  for (const int sequences : {1, 4, 8}) {
    bare.clear();
    engine.clear();
    for (int s = 0; s < sequences; ++s) {
      bare.prefill(s, short_prompt);
      engine.prefill(short_prompt, nullptr);
    }
    int bare_at = kDecodeContext, engine_at = kDecodeContext;
    const std::string name = "decode " + std::to_string(sequences);
    compare(
        name.c_str(), sequences * kSteps, rounds,
        [&] {
          return timed([&] {
            for (int i = 0; i < kSteps; ++i) bare.decode(sequences, bare_at++);
          });
        },
        [&] {
          return timed([&] {
            for (int i = 0; i < kSteps; ++i) engine.decode(sequences, engine_at++);
          });
        });
  }
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::log_init("tandem-engine-bench", tandem::LogLevel::kWarn);
  const std::string path = argc > 1 ? argv[1] : "models/smollm2-135m-instruct-q4_0.gguf";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  if (rounds < 1 || rounds > 40) {
    std::fprintf(stderr, "usage: tandem-engine-bench [model.gguf] [rounds: 1 to 40]\n");
    return 2;
  }
  tandem::bench(path, rounds);
  return 0;
}

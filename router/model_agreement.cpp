#include "router/model_agreement.h"

#include <algorithm>

#include "common/log.h"

namespace tandem::router {
namespace {

Status mismatch(std::string_view what, std::string_view ours, std::string_view theirs,
                std::string_view whose) {
  return Status(ErrorCode::kFailedPrecondition,
                std::string(what) + " is " + tandem::quoted(theirs) + " here, " +
                    tandem::quoted(ours) + " in " + std::string(whose));
}

}  // namespace

size_t ModelAgreement::count(const Build& build) const {
  return static_cast<size_t>(std::ranges::count(votes_, std::optional(build)));
}

Status ModelAgreement::vote(size_t worker, const link::Hello& hello) {
  constexpr std::string_view kConfiguration = "the router's configuration";
  votes_[worker].reset();
  if (hello.engine != fixed_.engine)
    return mismatch("engine", fixed_.engine, hello.engine, kConfiguration);
  if (hello.chunk_tokens != fixed_.chunk_tokens)
    return mismatch("chunk grid", std::to_string(fixed_.chunk_tokens),
                    std::to_string(hello.chunk_tokens), kConfiguration);
  if (!fixed_.model_digest.empty() && hello.model_digest != fixed_.model_digest)
    return mismatch("model digest", fixed_.model_digest, hello.model_digest,
                    "the router's model file");
  const Build build(hello);
  votes_[worker] = build;
  if (!agreed_ || (*agreed_ != build && count(build) > count(*agreed_))) {
    if (agreed_)
      log_warn("event=model_changed model_digest={} workers={} was={}", build.model_digest,
               count(build), agreed_->model_digest);
    agreed_ = build;
    ++generation_;
  }
  if (build.model_digest != agreed_->model_digest)
    return mismatch("model digest", agreed_->model_digest, build.model_digest, "this cluster");
  if (build.kv_layout_digest != agreed_->kv_layout_digest)
    return mismatch("KV layout digest", agreed_->kv_layout_digest, build.kv_layout_digest,
                    "this cluster");
  return {};
}

}  // namespace tandem::router

// Pieces that chunks and bodies share. Internal to router/openai.
#pragma once

#include <span>
#include <string>

#include "router/openai/json_writer.h"
#include "router/openai/render.h"

namespace tandem::openai {

void write_usage(const Usage& usage, JsonWriter& json);
void write_finish(const TextDelta& delta, JsonWriter& json);
void write_token_ids(std::span<const TokenId> ids, JsonWriter& json);
// The value of `logprobs` in the endpoint's own form; null when there is none. `offset_base`: code
// points of the echo.
void write_logprobs(const ResponseMeta& meta, std::span<const LogprobEntry> entries,
                    size_t offset_base, JsonWriter& json);

}  // namespace tandem::openai

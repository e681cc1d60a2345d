// The parts of parse_completion(), one file each. Internal to router/openai.
#pragma once

#include "router/openai/json_fields.h"
#include "router/openai/request.h"

namespace tandem::openai {

// parse_sampling.cpp: what both endpoints share.
void read_common(Fields& fields, const Limits& limits, CompletionRequest& request);
// parse_unsupported.cpp: fields that would change the answer and that this release cannot honour.
void refuse_unsupported(Fields& fields, const Limits& limits, CompletionRequest& request);
// parse_chat.cpp: messages, and what else a template sees.
void read_chat(Fields& fields, const Limits& limits, CompletionRequest& request);
void read_template_fields(Fields& fields, const Limits& limits, CompletionRequest& request);
// parse_messages.cpp: normalises the messages for a template, as JSON.
void read_messages(const Element& messages, const Limits& limits, CompletionRequest& request,
                   Problems& problems);
// parse_tools.cpp
void read_tools(Fields& fields, const Limits& limits, CompletionRequest& request);

// A list of token ids; `param` names it in errors, which never repeat an id.
std::vector<TokenId> read_token_ids(simdjson::dom::array array, const std::string& param,
                                    Problems& problems);

}  // namespace tandem::openai

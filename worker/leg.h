// What prefill legs and decode legs have in common: whose they are, until when, and how their
// router is told. Plain values of the engine thread.
#pragma once

#include <string>
#include <string_view>

#include "common/clock.h"
#include "engine/engine.h"
#include "link/messages.h"
#include "link/session.h"

namespace tandem::worker {

// Can this worker's model run the leg at all? Everything here is kInvalidArgument.
Status check_leg(const link::Leg& leg, const ModelInfo& model, int sequences_max);

// When the leg must be over: its own deadline, else `otherwise` from now.
TimePoint leg_deadline(const link::Leg& leg, TimePoint now, Duration otherwise);

// Each sends one frame. A router that is gone does not hear it; its legs end by RouterGone.
void send_event(link::Session& router, TransferId transfer, std::string_view name);
// Only kInvalidArgument says that no other worker and no later attempt can succeed.
void send_failed(link::Session& router, const link::Leg& leg, std::string_view worker,
                 const Status& reason);

// Why a transfer failed, as a leg's failure: what its two ends hold against each other is not the
// request's fault.
Status transfer_failure(const Status& reason);

// A token's finish reason once the limits of length are looked at too. `position`: where the token
// would go.
FinishReason finish_of(const SampledToken& sampled, int emitted, int max_tokens, int position,
                       int context);

}  // namespace tandem::worker

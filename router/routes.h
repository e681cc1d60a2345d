// What each method and path of the data port means.
#pragma once

#include <boost/asio/awaitable.hpp>

#include "router/exchange.h"
#include "router/services.h"

namespace tandem::router {

// Answers one request. `services` outlives it.
boost::asio::awaitable<void> route(Services& services, Exchange& exchange);

}  // namespace tandem::router

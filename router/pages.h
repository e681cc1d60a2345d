// What GET answers on both ports: models, health, metrics, workers, timelines. Any thread; /metrics
// and the lists are too slow for an I/O thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "router/exchange.h"
#include "router/services.h"

namespace tandem::router {

// `path` as in Request::path. nullopt: no such page.
std::optional<Response> get_page(Services& services, std::string_view path);
// Pages that cost next to nothing.
bool is_quick_page(std::string_view path);

}  // namespace tandem::router

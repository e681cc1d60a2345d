// run_on: awaits a job on the work threads from a coroutine on an I/O thread. nullopt: their queue
// is full.
#pragma once

#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <memory>
#include <optional>

#include "router/work_threads.h"

namespace tandem::router {

template <class T>
boost::asio::awaitable<std::optional<T>> run_on(WorkThreads& threads, std::function<T()> job) {
  namespace asio = boost::asio;
  const auto executor = co_await asio::this_coro::executor;
  // Shared between the job, which may be dropped, and this coroutine.
  const auto result = std::make_shared<std::optional<T>>();
  const auto initiate = [&](auto handler) {
    const auto resume = std::make_shared<decltype(handler)>(std::move(handler));
    const auto wake = [resume, executor] {
      asio::post(executor, [resume] { std::move (*resume)(); });
    };
    const bool queued = threads.post([result, job = std::move(job), wake] {
      result->emplace(job());
      wake();
    });
    if (!queued) wake();
  };
  co_await asio::async_initiate<const asio::use_awaitable_t<>, void()>(initiate,
                                                                       asio::use_awaitable);
  co_return std::move(*result);
}

}  // namespace tandem::router

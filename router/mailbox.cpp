#include "router/mailbox.h"

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace tandem::router {
namespace asio = boost::asio;

void Mailbox::push(AttemptEvent event) {
  if (wakeup_ == nullptr) return;
  events_.push_back(std::move(event));
  if (events_.size() == 1) wakeup_->cancel();
}

void Mailbox::interrupt() {
  interrupted_ = true;
  if (wakeup_ != nullptr) wakeup_->cancel();
}

void Mailbox::close() {
  wakeup_ = nullptr;
  events_.clear();
}

asio::awaitable<void> Mailbox::wait(TimePoint until) {
  if (events_.empty() && !interrupted_) {
    wakeup_->expires_at(until);
    boost::system::error_code ignored;
    co_await wakeup_->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  interrupted_ = false;
}

void Mailbox::deliver(asio::io_context& io, Batch batch) {
  asio::post(io, [batch = std::move(batch)]() mutable {
    for (auto& [mailbox, event] : batch) mailbox->push(std::move(event));
  });
}

}  // namespace tandem::router

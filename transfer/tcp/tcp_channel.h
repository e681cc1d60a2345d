// TcpChannel: one dialled connection. Private to tcp/.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>

#include "transfer/tcp/tcp_wire.h"
#include "transfer/transport.h"

namespace tandem::transfer {

std::unique_ptr<Channel> make_tcp_channel(boost::asio::io_context& io, TcpAddress address);

}  // namespace tandem::transfer

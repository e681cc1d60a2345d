#include "transfer/tcp/tcp_transport.h"

#include <fmt/format.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <thread>

#include "common/random.h"
#include "transfer/memory.h"
#include "transfer/tcp/tcp_channel.h"
#include "transfer/tcp/tcp_inbound.h"

namespace tandem::transfer {
namespace {

namespace asio = boost::asio;

constexpr auto kHandlerDeadline = std::chrono::seconds(1);

class TcpSegment final : public Segment {
 public:
  TcpSegment(TcpSegments& segments, std::span<std::byte> memory, std::optional<MappedMemory> owned)
      : segments_(segments), owned_(std::move(owned)), memory_(memory), id_(segments.add(memory)) {}
  ~TcpSegment() override { segments_.remove(id_); }
  std::span<std::byte> memory() override { return memory_; }
  std::string descriptor() const override { return TcpDescriptor{id_, memory_.size()}.encode(); }

 private:
  TcpSegments& segments_;
  const std::optional<MappedMemory> owned_;
  const std::span<std::byte> memory_;
  const uint64_t id_;
};

bool is_wildcard(const std::string& host) {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(host, error);
  return !error && address.is_unspecified();
}

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(std::string host) : host_(std::move(host)) {}
  ~TcpTransport() override {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Status start() {
    TANDEM_RETURN_IF_ERROR(inbound_.listen(host_));
    thread_ = std::thread([this] { io_.run(); });
    return {};
  }

  std::string_view name() const override { return "tcp"; }
  Capabilities capabilities() const override {
    return {.one_sided = false, .message_bytes_max = kTcpMessageBytesMax};
  }
  std::string address() const override {
    return TcpAddress{is_wildcard(host_) ? "" : host_, inbound_.port(), key_}.encode();
  }

  Result<std::unique_ptr<Segment>> allocate(size_t bytes) override {
    auto memory = MappedMemory::allocate(bytes);
    if (!memory) return memory.status();
    const std::span<std::byte> span = memory->bytes();
    return std::unique_ptr<Segment>(
        std::make_unique<TcpSegment>(segments_, span, *std::move(memory)));
  }
  Result<std::unique_ptr<Segment>> share(std::span<std::byte> memory) override {
    return std::unique_ptr<Segment>(std::make_unique<TcpSegment>(segments_, memory, std::nullopt));
  }

  Result<std::unique_ptr<Channel>> connect(std::string_view peer_address,
                                           std::string_view peer_host) override {
    auto address = TcpAddress::decode(peer_address);
    if (!address) return address.status();
    if (address->host.empty()) address->host = peer_host;
    return make_tcp_channel(io_, *std::move(address));
  }

  void set_message_handler(MessageHandler handler) override {
    inbound_.set_message_handler(std::move(handler));
    if (!thread_.joinable() || std::this_thread::get_id() == thread_.get_id()) return;
    // The earlier handler may be running: what it refers to can go once this returns.
    const auto ended = std::make_shared<std::promise<void>>();
    asio::post(io_, [ended] { ended->set_value(); });
    ended->get_future().wait_for(kHandlerDeadline);
  }
  bool progress() override { return false; }
  int event_fd() const override { return -1; }
  bool arm() override { return true; }
  std::string description() const override {
    return fmt::format("sockets on {} port {}", host_, inbound_.port());
  }

 private:
  const std::string host_;
  const std::string key_ = random_bytes(kTcpKeyBytes);
  TcpSegments segments_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  TcpInbound inbound_{io_, segments_, key_};
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_tcp_transport(const Config& config) {
  auto listen = parse_host_port(config.link.listen);
  if (!listen) return listen.status();
  auto transport = std::make_unique<TcpTransport>(listen->host);
  TANDEM_RETURN_IF_ERROR(transport->start());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace tandem::transfer

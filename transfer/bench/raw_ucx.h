// Bare UCX, as thin as it gets: what the stream is measured against. One thread per object, no
// checks, no protocol: put, flush, active message.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem::transfer {

class RawUcx {
 public:
  RawUcx();
  ~RawUcx();
  RawUcx(const RawUcx&) = delete;
  RawUcx& operator=(const RawUcx&) = delete;

  // The target's side: memory that UCX allocates, and what the other side needs to reach it.
  std::span<std::byte> allocate(size_t bytes);
  std::string address() const;
  std::string key() const;

  void connect(const std::string& address);
  void attach(const std::string& key);
  void put(size_t offset, std::span<const std::byte> source);
  void flush();
  void send(std::string_view message);
  // Polls until `count` messages have arrived in all.
  void await(uint64_t count);
  bool poll() { return ucp_worker_progress(worker_) != 0; }
  uint64_t received() const { return received_; }

 private:
  void wait(void* request);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucp_mem_h memory_ = nullptr;
  ucp_rkey_h remote_key_ = nullptr;
  uint64_t remote_address_ = 0;
  uint64_t local_address_ = 0;
  uint64_t received_ = 0;
};

}  // namespace tandem::transfer

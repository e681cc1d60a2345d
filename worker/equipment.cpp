#include "worker/equipment.h"

#include <algorithm>

#include "common/log.h"
#include "transfer/local/local_transport.h"
#include "worker/partitioned_work.h"

namespace tandem::worker {
namespace {

std::vector<transfer::Transport*> pointers(
    const std::vector<std::unique_ptr<transfer::Transport>>& transports) {
  std::vector<transfer::Transport*> all;
  for (const auto& transport : transports) all.push_back(transport.get());
  return all;
}

}  // namespace

Equipment::Equipment(boost::asio::io_context& io, const link::LinkContext& link,
                     const link::Hello& self, const WorkContext& context)
    : io_(io), link_(link), self_(self), context_(context), processors_(processors_allowed()) {}

Equipment::~Equipment() { stop(); }

Result<std::unique_ptr<RoleWork>> Equipment::take_role(Role role) {
  WorkContext context = context_;
  context.role = role;
  context.pacer.begin(role == Role::kPartitioned);
  if (role == Role::kPartitioned) return make_partitioned(context);
  const PoolConfig& pool = context.config.pool(role);
  TANDEM_RETURN_IF_ERROR(context.engine.resize(pool.slots, pool.threads));
  if (role == Role::kPrefill) {
    need_sender();
    return make_prefill_work(context, sender_.get());
  }
  if (role == Role::kDecode) TANDEM_RETURN_IF_ERROR(need_receiver());
  return make_decode_work(context, {.remote = role == Role::kDecode ? receiver_.get() : nullptr});
}

Result<std::unique_ptr<RoleWork>> Equipment::make_partitioned(const WorkContext& context) {
  const PoolConfig& pool = context.config.partitioned;
  const Partition partition = divide(pool.threads, processors_, context.config.share);
  need_sender();
  TANDEM_RETURN_IF_ERROR(need_receiver());
  TANDEM_RETURN_IF_ERROR(need_own_receiver());
  TANDEM_RETURN_IF_ERROR(context.engine.resize(pool.slots, partition.decode_threads));
  auto sibling =
      context.engine.make_sibling(context.config.prefill.slots, partition.prefill_threads);
  if (!sibling) return sibling.status().with_context("the prefill half's engine");
  log_info(
      "event=partition worker={} prefill_threads={} decode_threads={} prefill_processors={} "
      "decode_processors={} gpu=\"not built: engines run on processors only\"",
      context.name, partition.prefill_threads, partition.decode_threads,
      partition.prefill_processors.size(), partition.decode_processors.size());
  return std::unique_ptr<RoleWork>(std::make_unique<PartitionedWork>(
      io_, context,
      PartitionedWork::Parts{std::move(*sibling),
                             sender_.get(),
                             {receiver_.get(), own_receiver_.get()},
                             partition,
                             self_}));
}

void Equipment::need_sender() {
  if (sender_) return;
  sending_ = transfer::make_transports(context_.config);
  // Only this worker's own receiver takes what comes over it.
  sending_.push_back(transfer::make_local_transport());
  sender_ = transfer::make_sender(io_, link_, context_.config, context_.engine.kv_layout(),
                                  pointers(sending_));
  context_.report.watch(*sender_);
}

Status Equipment::need_receiver() {
  if (receiver_) return {};
  if (receiving_.empty()) receiving_ = transfer::make_transports(context_.config);
  auto receiver = transfer::make_receiver(io_, context_.config, context_.engine.kv_layout(),
                                          pointers(receiving_));
  if (!receiver) return receiver.status().with_context("landing memory");
  receiver_ = std::move(*receiver);
  context_.report.watch(*receiver_, context_.config.transfer.landing_bytes);
  remote_now_ = receiver_.get();
  return {};
}

// Landing memory for what the prefill half can have under way.
Status Equipment::need_own_receiver() {
  if (own_receiver_) return {};
  Config config = context_.config;
  config.transfer.landing_bytes =
      std::min(config.transfer.landing_bytes, config.transfer.segment_bytes * config.prefill.slots);
  own_.clear();
  own_.push_back(transfer::make_local_transport());
  auto receiver = transfer::make_receiver(io_, config, context_.engine.kv_layout(), pointers(own_));
  if (!receiver) return receiver.status().with_context("landing memory within the worker");
  own_receiver_ = std::move(*receiver);
  context_.report.watch(*own_receiver_, config.transfer.landing_bytes);
  own_now_ = own_receiver_.get();
  return {};
}

transfer::Receiver* Equipment::receiver_for(const link::Hello& peer) const {
  return peer.epoch == self_.epoch ? own_now_ : remote_now_;
}

std::vector<std::string> Equipment::transport_names() const {
  std::vector<std::string> names;
  for (const auto& transport : receiving_.empty() ? sending_ : receiving_) {
    if (transport->protocol() != "local") names.emplace_back(transport->name());
  }
  return names;
}

void Equipment::stop() {
  if (sender_) sender_->stop();
  if (own_receiver_) own_receiver_->stop();
  if (receiver_) receiver_->stop();
}

}  // namespace tandem::worker

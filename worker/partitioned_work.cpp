#include "worker/partitioned_work.h"

#include "common/random.h"

namespace tandem::worker {
namespace {

constexpr size_t kTransferTokenBytes = 16;

WorkContext half_of(const WorkContext& context, Engine& engine, Inbox& inbox,
                    AbortSwitch& abort_switch) {
  return {context.config, context.name,   context.role,  engine,       inbox,
          abort_switch,   context.report, context.pacer, context.clock};
}

}  // namespace

PartitionedWork::PartitionedWork(boost::asio::io_context& io, const WorkContext& context,
                                 Parts parts)
    : context_(context),
      parts_(std::move(parts)),
      processors_(processors_allowed()),
      decode_(context, parts_.receivers),
      abort_switch_(io, *parts_.prefill_engine),
      loop_(
          half_of(context, *parts_.prefill_engine, inbox_, abort_switch_),
          make_prefill_work(
              half_of(context, *parts_.prefill_engine, inbox_, abort_switch_), parts_.sender,
              // Where no stream is open yet, nothing else tells the decode half.
              [inbox = &context.inbox](TransferId transfer, const Status& reason) {
                inbox->push(TransferChanged{transfer, TransferChanged::Kind::kFailed, {}, reason});
              }),
          [report = &context.report](const link::Load& load) {
            report->publish_prompts({load.prefill_backlog_tokens, load.prefill_us_per_token});
          }) {
  thread_ = std::thread([this] {
    stay_on(parts_.partition.prefill_processors);
    loop_.run();
  });
}

PartitionedWork::~PartitionedWork() {
  inbox_.push(StopRequested{});
  abort_switch_.stop();
  thread_.join();
  context_.report.publish_prompts({});
  if (placed_) stay_on(processors_);
}

void PartitionedWork::on_decode(DecodeArrived message) {
  const TransferId transfer = message.command.leg.transfer;
  if (!message.command.local || decode_.has(transfer)) {
    return decode_.on_decode(std::move(message));
  }
  message.command.token = random_bytes(kTransferTokenBytes);
  PrefillArrived prompt{message.session,
                        {message.command.leg, parts_.self.listen, context_.name, parts_.self.epoch,
                         message.command.token}};
  decode_.on_decode(std::move(message));
  if (decode_.has(transfer)) inbox_.push(std::move(prompt));
}

void PartitionedWork::on_cancel(const CancelArrived& message) {
  decode_.on_cancel(message);
  inbox_.push(CancelArrived(message));
  if (message.command.choice < 0) {
    abort_switch_.cancelled(message.command.transfer, message.session);
  }
}

void PartitionedWork::on_router_gone(const link::Session* router) {
  decode_.on_router_gone(router);
  inbox_.push(RouterGone{router});
  abort_switch_.router_gone(router);
}

void PartitionedWork::set_draining(bool draining) {
  decode_.set_draining(draining);
  inbox_.push(DrainChanged{draining});
}

void PartitionedWork::end_all(const Status& reason) {
  decode_.end_all(reason);
  inbox_.push(LegsEnded{reason});
  abort_switch_.stop();
}

bool PartitionedWork::advance() {
  // Here, because the constructor may run on another thread.
  if (!std::exchange(placed_, true)) stay_on(parts_.partition.decode_processors);
  return decode_.advance();
}

}  // namespace tandem::worker

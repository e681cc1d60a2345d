#include "common/log.h"
#include "transfer/fault/fault_transport.h"
#include "transfer/self_test.h"
#include "transfer/tcp/tcp_transport.h"
#include "transfer/transport.h"
#include "transfer/ucx/ucx_transport.h"

namespace tandem::transfer {
namespace {

// Below this share of a memcpy's speed something took a path that nobody meant.
constexpr double kSlowShare = 0.1;

Result<std::unique_ptr<Transport>> make_plain(std::string_view name, const Config& config) {
  if (name == "ucx") return make_ucx_transport();
  if (name == "tcp") return make_tcp_transport(config);
  return Status(ErrorCode::kInvalidArgument, fmt::format("no transport is called '{}'", name));
}

Result<std::unique_ptr<Transport>> make_tested(std::string_view name, const Config& config) {
  auto transport = make_plain(name, config);
  if (!transport) return transport;
  auto source = make_plain(name, config);
  if (!source) return source;
  const auto report = self_test(**transport, **source);
  if (!report) return report.status();
  log_info(
      "event=transport_ready transport={} put_gb_per_s={:.2f} memcpy_gb_per_s={:.2f} detail={}",
      name, report->put_gb_per_s, report->copy_gb_per_s,
      tandem::quoted((*transport)->description()));
  if (report->put_gb_per_s < kSlowShare * report->copy_gb_per_s) {
    log_warn("event=transport_slow transport={} put_gb_per_s={:.2f} expected_gb_per_s={:.2f}", name,
             report->put_gb_per_s, kSlowShare * report->copy_gb_per_s);
  }
  return transport;
}

Result<std::unique_ptr<Transport>> with_faults(std::unique_ptr<Transport> transport,
                                               const Config& config) {
  if (config.transfer.fault.empty()) return transport;
  const auto spec = FaultSpec::parse(config.transfer.fault);
  if (!spec) return spec.status();
  return make_fault_transport(std::move(transport), *spec);
}

}  // namespace

Result<std::unique_ptr<Transport>> make_transport(std::string_view name, const Config& config) {
  auto transport = make_plain(name, config);
  if (!transport) return transport;
  return with_faults(*std::move(transport), config);
}

std::vector<std::unique_ptr<Transport>> make_transports(const Config& config) {
  const std::string& wanted = config.transfer.transport;
  std::vector<std::string_view> names{"ucx", "tcp"};
  if (wanted != "auto") names = {wanted};
  std::vector<std::unique_ptr<Transport>> transports;
  const auto add = [&](Result<std::unique_ptr<Transport>> transport) {
    if (transport) transport = with_faults(*std::move(transport), config);
    if (!transport) return transport.status();
    transports.push_back(*std::move(transport));
    return Status();
  };
  for (const std::string_view name : names) {
    const Status status = add(make_tested(name, config));
    if (!status.ok()) {
      log_warn("event=transport_unavailable transport={} reason={}", name,
               tandem::quoted(status.to_string()));
    }
  }
  if (transports.empty()) {
    log_warn("event=transport_fallback transport=tcp wanted={}", wanted);
    const Status status = add(make_plain("tcp", config));
    if (!status.ok()) {
      log_error("event=no_transport reason={}", tandem::quoted(status.to_string()));
    }
  }
  return transports;
}

}  // namespace tandem::transfer

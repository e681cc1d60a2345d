#include "router/objectives.h"

#include <algorithm>
#include <climits>
#include <optional>

#include "common/units.h"

namespace tandem::router {
namespace {

using openai::ApiError;

constexpr double kSloMaxMs = 3'600'000;        // As slo.ttft_ms
constexpr double kDeadlineMaxMs = 86'400'000;  // As router.request_deadline_ms
constexpr size_t kTextBytesMax = 128;
constexpr std::string_view kTtft = "x-slo-ttft-ms";
constexpr std::string_view kTpot = "x-slo-tpot-ms";
constexpr std::string_view kOnMiss = "x-slo-on-miss";
constexpr std::string_view kDeadline = "x-deadline-ms";
constexpr std::string_view kPriority = "x-priority";
constexpr std::string_view kTenant = "x-tenant";
constexpr std::string_view kSession = "x-session-id";
constexpr std::string_view kKnown[] = {kTtft,     kTpot,   kOnMiss, kDeadline,
                                       kPriority, kTenant, kSession};

// Remembers the first problem.
class Reader {
 public:
  explicit Reader(const Headers& headers) : headers_(headers) {}

  const std::string* find(std::string_view name) const {
    for (const auto& [known, value] : headers_)
      if (known == name) return &value;
    return nullptr;
  }
  void milliseconds(std::string_view name, double max, Duration& out) {
    const std::string* text = find(name);
    if (text == nullptr) return;
    const std::optional<double> ms = parse_number(*text);
    if (!ms || !(*ms > 0) || *ms > max)
      return fail(name, "expected milliseconds above 0, at most " +
                            std::to_string(static_cast<int64_t>(max)) + ".");
    out = std::max(Duration(1), Duration(static_cast<int64_t>(*ms * 1e6)));
  }
  void integer(std::string_view name, int& out) {
    const std::string* text = find(name);
    if (text == nullptr) return;
    const std::optional<int64_t> value = parse_integer(*text);
    if (!value || *value <= INT_MIN || *value > INT_MAX)
      return fail(name, "expected an integer of 32 bits.");
    out = static_cast<int>(*value);
  }
  std::string text(std::string_view name) {
    const std::string* value = find(name);
    if (value == nullptr) return {};
    const auto visible = [](char c) { return c >= ' ' && c <= '~'; };
    if (value->empty() || value->size() > kTextBytesMax || !std::ranges::all_of(*value, visible))
      fail(name, "expected 1 to " + std::to_string(kTextBytesMax) + " printable ASCII characters.");
    return *value;
  }
  void fail(std::string_view name, std::string_view reason) {
    if (!problem_) problem_ = openai::invalid_value(name, reason);
  }
  const std::optional<ApiError>& problem() const { return problem_; }

 private:
  const Headers& headers_;
  std::optional<ApiError> problem_;
};

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// Bounded, however long the name that a client has for its users.
std::string tenant_of(std::string header, const std::string& user, const PrefixHasher& hasher) {
  if (!header.empty()) return header;
  return user.size() <= kTextBytesMax ? user : "user-" + hex(hasher.name("user", user));
}

}  // namespace

bool is_objective(std::string_view header) {
  return std::ranges::find(kKnown, header) != std::end(kKnown);
}

openai::Parsed<Objectives> read_objectives(const Headers& headers,
                                           const openai::CompletionRequest& request,
                                           const SloConfig& defaults, const PrefixHasher& hasher) {
  Reader reader(headers);
  Objectives asked;
  reader.milliseconds(kTtft, kSloMaxMs, asked.ttft_slo);
  reader.milliseconds(kTpot, kSloMaxMs, asked.tpot_slo);
  reader.milliseconds(kDeadline, kDeadlineMaxMs, asked.deadline);
  asked.priority = static_cast<int>(std::clamp<int64_t>(request.priority, INT_MIN + 1, INT_MAX));
  reader.integer(kPriority, asked.priority);
  asked.refuse_on_miss = defaults.on_miss == "refuse";
  if (const std::string* on_miss = reader.find(kOnMiss)) {
    asked.refuse_on_miss = *on_miss == "refuse";
    if (!asked.refuse_on_miss && *on_miss != "serve")
      reader.fail(kOnMiss, "expected 'serve' or 'refuse'.");
  }
  asked.tenant = tenant_of(reader.text(kTenant), request.user, hasher);
  const std::string session = reader.text(kSession);
  if (reader.problem()) return *reader.problem();

  // Who continues a conversation says so, or repeats how it began.
  const std::string_view opening =
      std::string_view(request.messages).substr(0, request.opening_bytes);
  const std::string tenant = asked.tenant + '\0';
  if (!session.empty())
    asked.session = hasher.name("session", tenant + session);
  else if (!request.prompt_cache_key.empty())
    asked.session = hasher.name("cache_key", tenant + request.prompt_cache_key);
  else if (!opening.empty())
    asked.session = hasher.name("opening", tenant + std::string(opening));
  asked.cache_root = hasher.name("root", tenant + request.cache_salt);
  return asked;
}

}  // namespace tandem::router

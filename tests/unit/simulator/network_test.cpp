// The shares of concurrent flows against figures worked out by hand, and the layer-wise hand-over
// against the formula of docs/scheduling.md: residual = x + (L - 1) max(0, x - c).
#include "simulator/network.h"

#include <doctest/doctest.h>

using namespace tandem::simulator;

namespace {

constexpr double kGB = 1e9;

double end_of_first(Network& network) {
  const auto next = network.next_finish();
  REQUIRE(next);
  network.finish(next->flow, next->at_s);
  return next->at_s;
}

}  // namespace

TEST_CASE("flows from one sender share its way out") {
  Network network(3, 10 * kGB);
  network.start(0, 1, 10 * kGB, Network::kNoCap, 0);
  network.start(0, 2, 20 * kGB, Network::kNoCap, 0);
  CHECK(end_of_first(network) == doctest::Approx(2.0));  // 5 GB/s each
  CHECK(end_of_first(network) == doctest::Approx(3.0));  // Then 10 GB/s for the last 10 GB
  CHECK(network.bytes_moved() == doctest::Approx(30 * kGB));
}

TEST_CASE("what one flow cannot use goes to the others, max-min") {
  // Worker 3 receives from 0, 1 and 2; worker 0 also sends to 4. All ways carry 12.
  Network network(5, 12);
  const auto a = network.start(0, 3, 1e3, Network::kNoCap, 0);
  const auto b = network.start(1, 3, 1e3, 2, 0);  // Its sender makes no more than 2 per second
  const auto c = network.start(2, 3, 1e3, Network::kNoCap, 0);
  const auto d = network.start(0, 4, 1e3, Network::kNoCap, 0);
  CHECK(network.rate(b) == doctest::Approx(2));
  CHECK(network.rate(a) == doctest::Approx(5));  // (12 - 2) / 2 into worker 3
  CHECK(network.rate(c) == doctest::Approx(5));
  CHECK(network.rate(d) == doctest::Approx(7));  // What a leaves of worker 0's way out
  network.cancel(c, 0);
  CHECK(network.rate(a) == doctest::Approx(6));  // Now its way out is the tighter one
  CHECK(network.rate(d) == doctest::Approx(6));
}

TEST_CASE("a hand-over that follows the layers ends after the computation by the formula") {
  const double layers = 40, compute_s = 2.0;
  for (const double transfer_s : {0.5, 1.0, 1.9, 4.0}) {
    CAPTURE(transfer_s);
    Network network(2, 1.0);
    const auto flow = network.start(0, 1, transfer_s, transfer_s / compute_s, 0);
    // The first layer has to be computed before anything can leave, which the cap of one layer
    // less per layer's time stands for: at the end of the computation one layer is left.
    network.set_cap(flow, Network::kNoCap, compute_s * (1 - 1 / layers));
    const double x = transfer_s / layers, c = compute_s / layers;
    const double residual = x + (layers - 1) * std::max(0.0, x - c);
    CHECK(end_of_first(network) + c == doctest::Approx(compute_s + residual).epsilon(0.03));
  }
}

// Proves that metrics lose nothing across threads, render as Prometheus text, and survive the trip
// from a worker to the router.
#include <doctest/doctest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "common/metrics.h"

using namespace tandem;

namespace {
bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}
int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}
}  // namespace

TEST_CASE("counts of running and ended threads add up") {
  const auto counter = metrics::counter("t_threads_total", "Help.");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([counter] {
      for (int n = 0; n < 10000; ++n) counter.add();
    });
  }
  counter.add(0.5);
  while (counter.value() < 1000) std::this_thread::yield();  // Reading beside writers is safe
  for (auto& thread : threads) thread.join();
  CHECK(counter.value() == 40000.5);
}

TEST_CASE("the same name and labels in any order are one series") {
  const auto a = metrics::counter("t_same_total", "Help.", {{"x", "1"}, {"y", "2"}});
  const auto b = metrics::counter("t_same_total", "Help.", {{"y", "2"}, {"x", "1"}});
  const auto c = metrics::counter("t_same_total", "Help.", {{"x", "1"}});
  a.add();
  b.add();
  CHECK(a.value() == 2);
  CHECK(c.value() == 0);
}

TEST_CASE("handles that were never asked for count into the void") {
  metrics::Counter().add();
  metrics::Gauge().set(3);
  metrics::Histogram().observe(1);
  CHECK(metrics::Counter().value() == 0);
}

TEST_CASE("metrics render as text format 0.0.4") {
  metrics::counter("t_render_total", "What it counts.", {{"reason", "a \"b\""}}).add(3);
  metrics::gauge("t_render_level", "A level.").set(-2.5);
  constexpr double kBounds[] = {0.1, 1};
  const auto histogram = metrics::histogram("t_render_seconds", "A wait.", kBounds);
  for (double value : {0.05, 0.1, 0.5, 7.0}) histogram.observe(value);
  CHECK(histogram.count() == 4);
  CHECK(histogram.sum() == doctest::Approx(7.65));
  const std::string text = render_metrics();
  CHECK(has_line(text, "# TYPE t_render_total counter"));
  CHECK(has_line(text, "# HELP t_render_total What it counts."));
  CHECK(count_of(text, "t_render_total{reason=\"a \\\"b\\\"\"} 3") == 1);
  CHECK(has_line(text, "t_render_level -2.5"));
  CHECK(count_of(text, "t_render_seconds_bucket{le=\"0.1\"} 2") == 1);  // Limits are inclusive
  CHECK(count_of(text, "t_render_seconds_bucket{le=\"+Inf\"} 4") == 1);
  CHECK(has_line(text, "t_render_seconds_count 4"));
}

TEST_CASE(
    "a worker's series arrive at the router under its name, in one family with the router's own") {
  const metrics::Label worker = {"worker", "d7"};
  constexpr double kBounds[] = {0.5};
  metrics::counter("t_push_total", "Help.", {{"direction", "in"}, worker}).add(9);
  metrics::gauge("t_push_level", "Help.", {worker}).set(4);
  metrics::histogram("t_push_seconds", "Help.", kBounds, {worker}).observe(0.25);
  metrics::counter("t_push_total", "Help.", {{"worker", "other"}}).add();
  const auto pushed = metrics::values_with(worker);
  CHECK(pushed.at("t_push_total{direction=\"in\"}") == 9);
  CHECK(pushed.at("t_push_level") == 4);
  CHECK(pushed.at("t_push_seconds_bucket{le=\"0.5\"}") == 1);
  CHECK(pushed.at("t_push_seconds_sum") == 0.25);
  CHECK(pushed.size() == 6);

  metrics::export_pushed({"worker", "remote"}, pushed);
  std::string text = render_metrics();
  CHECK(count_of(text, "# TYPE t_push_total counter") == 1);
  CHECK(count_of(text, "# TYPE t_push_seconds histogram") == 1);
  CHECK(has_line(text, "t_push_total{direction=\"in\",worker=\"remote\"} 9"));
  CHECK(has_line(text, "t_push_seconds_count{worker=\"remote\"} 1"));
  CHECK(count_of(text, "t_push_seconds_bucket{worker=\"remote\",le=\"0.5\"} 1") == 1);

  metrics::export_pushed({"worker", "remote"}, {{"t_new_total", 1}, {"t_new_bytes", 2}});
  text = render_metrics();
  CHECK(count_of(text, "remote") == 2);
  CHECK(has_line(text, "# TYPE t_new_total counter"));
  CHECK(has_line(text, "# TYPE t_new_bytes gauge"));
  metrics::forget_pushed({"worker", "remote"});
  CHECK(count_of(render_metrics(), "remote") == 0);
}

TEST_CASE("pushed names that do not parse, and values that are no numbers, are left out") {
  metrics::export_pushed({"worker", "liar"}, {{"", 1},
                                              {"bad name", 1},
                                              {"t{", 1},
                                              {"t{a=b}", 1},
                                              {"t{a=\"b}", 1},
                                              {"t{a=\"b\",}", 1},
                                              {"t\n", 1},
                                              {std::string(5000, 'a'), 1},
                                              {"t_nan", std::nan("")},
                                              {"t_ok{a=\"\\\\n\\\"\"}", 1}});
  const std::string text = render_metrics();
  CHECK(count_of(text, "liar") == 1);
  CHECK(count_of(text, "t_ok{a=\"\\\\n\\\"\",worker=\"liar\"} 1") == 1);
  metrics::forget_pushed({"worker", "liar"});
}

TEST_CASE("a worker cannot take another name through its labels") {
  metrics::export_pushed({"worker", "real"}, {{"t_claim_total{worker=\"fake\"}", 1}});
  CHECK(has_line(render_metrics(), "t_claim_total{worker=\"real\"} 1"));
  metrics::forget_pushed({"worker", "real"});
}

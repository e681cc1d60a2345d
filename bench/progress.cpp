#include "bench/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace tandem::bench {
namespace {

constexpr int kBarCells = 24;
constexpr double kLineEveryS = 5.0;

double fraction_done(const ProgressView& view) {
  double fraction = 0.0;
  if (view.total > 0) fraction = static_cast<double>(view.done) / static_cast<double>(view.total);
  if (view.duration_s > 0.0) fraction = std::max(fraction, view.elapsed_s / view.duration_s);
  return std::clamp(fraction, 0.0, 1.0);
}

std::string bar(double fraction) {
  const int full = static_cast<int>(fraction * kBarCells);
  std::string cells;
  for (int i = 0; i < kBarCells; ++i) cells += i < full ? "█" : "░";
  return cells;
}

size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(bool enabled, std::string label)
    : enabled_(enabled), terminal_(isatty(STDERR_FILENO) == 1), label_(std::move(label)) {}

std::string Progress::line(const ProgressView& view, bool with_bar) const {
  const int seconds = static_cast<int>(view.elapsed_s);
  const double rate =
      view.elapsed_s > 0.0 ? static_cast<double>(view.tokens) / view.elapsed_s : 0.0;
  return fmt::format("{}{} {}{} done  {} running  {} waiting  {} failed  {:.0f} tok/s  {:02}:{:02}",
                     label_.empty() ? "" : label_ + "  ", with_bar ? bar(fraction_done(view)) : "",
                     view.done, view.total > 0 ? fmt::format("/{}", view.total) : "", view.running,
                     view.waiting, view.failed, rate, seconds / 60, seconds % 60);
}

void Progress::update(const ProgressView& view) {
  if (!enabled_ || finished_) return;
  if (terminal_) {
    std::string text = line(view, true);
    // The bar's cells are three bytes and one column each.
    const size_t limit = terminal_columns() + size_t{2} * kBarCells - 1;
    if (text.size() > limit) text.resize(limit);
    fmt::print(stderr, "\r{}\033[K", text);
  } else if (view.elapsed_s >= next_line_s_) {
    next_line_s_ = view.elapsed_s + kLineEveryS;
    fmt::print(stderr, "{}\n", line(view, false));
  }
  std::fflush(stderr);
}

void Progress::finish(const ProgressView& view) {
  if (!enabled_ || finished_) return;
  next_line_s_ = 0.0;
  update(view);
  if (terminal_) fmt::print(stderr, "\n");
  finished_ = true;
}

}  // namespace tandem::bench
